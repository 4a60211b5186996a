#include "runtime/checkpoint/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/base/json_depth.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/runs.h"

namespace meshtrain::checkpoint {
namespace {

using mesh::DType;
using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "tensors are written as they lie in memory");
constexpr int64_t kMaxHeader = 100'000'000;  // the reference implementation's
constexpr int64_t kAlignment = 64;
constexpr std::string_view kMetadata = "__metadata__";

struct TypeName {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> dtype;
};
constexpr TypeName kTypes[] = {
    {"BOOL", 1, DType::kBool}, {"U8", 1, DType::kU8},        {"I32", 4, DType::kI32},
    {"I64", 8, DType::kI64},   {"F32", 4, DType::kF32},      {"F64", 8, DType::kF64},
    {"I8", 1, std::nullopt},   {"I16", 2, std::nullopt},     {"U16", 2, std::nullopt},
    {"F16", 2, DType::kF16},   {"BF16", 2, DType::kBF16},    {"U32", 4, std::nullopt},
    {"U64", 8, std::nullopt},  {"F8_E5M2", 1, std::nullopt}, {"F8_E4M3", 1, std::nullopt},
    {"C64", 8, std::nullopt},
};

const TypeName* FindType(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const TypeName& t) { return t.name == name; });
  return found == std::end(kTypes) ? nullptr : found;
}

std::string_view NameOf(DType dtype) {
  for (const TypeName& t : kTypes) {
    if (t.dtype == dtype) return t.name;
  }
  MT_CHECK(false);
}

std::string Num(int64_t n) { return std::to_string(n); }

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Where an entry's mistake is: the header has no finer address once JSON is read.
Status Bad(const std::string& path, const std::string& name, const std::string& message) {
  return DataLoss(path + ": byte 8: header: tensor `" + Excerpt(name) + "`: " + message);
}

Result<json> ParseJson(std::string_view text, const std::string& path) {
  if (const Status deep = CheckJsonDepth(text); !deep.ok()) {
    return DataLoss(path + ": byte 8: header: " + deep.message());
  }
  std::set<std::string> names;
  std::string twice;
  try {
    json header = json::parse(text, [&](int depth, json::parse_event_t event, json& value) {
      if (event == json::parse_event_t::key && depth == 1 &&
          !names.insert(value.get<std::string>()).second) {
        twice = value.get<std::string>();
      }
      return true;
    });
    if (!twice.empty()) return Bad(path, twice, "expected each name once, got: it twice");
    if (!header.is_object()) {
      return DataLoss(path + ": byte 8: header: expected a JSON object, got: something else");
    }
    return header;
  } catch (const json::exception& error) {
    const auto* parse = dynamic_cast<const json::parse_error*>(&error);
    return DataLoss(
        path + ": byte " +
        Num(8 + (parse != nullptr && parse->byte > 0 ? static_cast<int64_t>(parse->byte) - 1 : 0)) +
        ": header: expected JSON, got: " + Excerpt(error.what()));
  }
}

Status ReadMetadata(const json& value, const std::string& path,
                    std::map<std::string, std::string>* out) {
  if (!value.is_object()) {
    return Bad(path, std::string(kMetadata),
               "expected an object of texts, got: " + Excerpt(Dump(value)));
  }
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      return Bad(path, std::string(kMetadata),
                 "expected a text for `" + Excerpt(key) + "`, got: " + Excerpt(Dump(text)));
    }
    (*out)[key] = text.get<std::string>();
  }
  return OkStatus();
}

Result<SafetensorsEntry> ReadEntry(const std::string& name, const json& value,
                                   const std::string& path, int64_t data_begin,
                                   int64_t file_bytes) {
  const auto unsigned_list = [](const json& list) {
    return list.is_array() && std::all_of(list.begin(), list.end(), [](const json& n) {
             return n.is_number_unsigned() && n.get<uint64_t>() <= uint64_t{1} << 62;
           });
  };
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
      !value.contains("shape") || !unsigned_list(value["shape"]) ||
      !value.contains("data_offsets") || !unsigned_list(value["data_offsets"]) ||
      value["data_offsets"].size() != 2) {
    return Bad(path, name,
               "expected dtype, shape and two data_offsets, got: " + Excerpt(Dump(value)));
  }
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = value["dtype"].get<std::string>();
  entry.dims = value["shape"].get<std::vector<int64_t>>();
  const auto offsets = value["data_offsets"].get<std::vector<int64_t>>();
  if (offsets[0] > offsets[1] || offsets[1] > file_bytes - data_begin) {
    return Bad(path, name,
               "expected data_offsets inside " + Num(file_bytes - data_begin) +
                   " bytes of data, got: [" + Num(offsets[0]) + "," + Num(offsets[1]) + "]");
  }
  entry.begin = data_begin + offsets[0];
  entry.end = data_begin + offsets[1];
  if (const TypeName* type = FindType(entry.dtype)) {
    int64_t bytes = type->bytes;
    bool overflow = false;
    for (const int64_t d : entry.dims) {
      overflow = overflow || __builtin_mul_overflow(bytes, d, &bytes);
    }
    if (overflow || bytes != entry.end - entry.begin) {
      return Bad(path, name,
                 "expected as many bytes as " + entry.dtype + " of shape " +
                     Excerpt(Dump(value["shape"])) +
                     " takes, got: " + Num(entry.end - entry.begin));
    }
  }
  return entry;
}

}  // namespace

std::optional<mesh::TensorType> SafetensorsEntry::type() const {
  const TypeName* known = FindType(dtype);
  if (known == nullptr || !known->dtype) return std::nullopt;
  return mesh::TensorType{*known->dtype, dims};
}

const SafetensorsEntry* SafetensorsHeader::Find(std::string_view name) const {
  for (const SafetensorsEntry& e : entries) {
    if (e.name == name) return &e;
  }
  return nullptr;
}

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view bytes, int64_t file_bytes,
                                                 const std::string& path) {
  if (file_bytes < 10 || bytes.size() < 8) {
    return DataLoss(path + ": byte 0: expected a safetensors file of at least 10 bytes, got: " +
                    Num(file_bytes));
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = length << 8 | static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
  }
  if (length < 2 || length > kMaxHeader || static_cast<int64_t>(length) > file_bytes - 8) {
    return DataLoss(path + ": byte 0: expected a header length of 2 to " +
                    Num(std::min(kMaxHeader, file_bytes - 8)) + ", got: " + std::to_string(length));
  }
  MT_CHECK(bytes.size() >= 8 + length);
  MT_ASSIGN_OR_RETURN(const json header, ParseJson(bytes.substr(8, length), path));
  SafetensorsHeader out;
  out.data_begin = 8 + static_cast<int64_t>(length);
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata) {
      MT_RETURN_IF_ERROR(ReadMetadata(value, path, &out.metadata));
      continue;
    }
    MT_ASSIGN_OR_RETURN(SafetensorsEntry entry,
                        ReadEntry(name, value, path, out.data_begin, file_bytes));
    out.entries.push_back(std::move(entry));
  }
  std::sort(out.entries.begin(), out.entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t at = out.data_begin;
  for (const SafetensorsEntry& e : out.entries) {
    if (e.begin != at) {
      return Bad(path, e.name,
                 "expected it to begin at byte " + Num(at) + ", got: byte " + Num(e.begin));
    }
    at = e.end;
  }
  if (at != file_bytes) {
    return DataLoss(path + ": byte " + Num(std::min(at, file_bytes)) +
                    ": expected the file to end at byte " + Num(at) + ", got: byte " +
                    Num(file_bytes));
  }
  return out;
}

Result<SafetensorsPlan> PlanSafetensors(std::vector<mesh::NamedType> tensors,
                                        const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const mesh::NamedType& a, const mesh::NamedType& b) {
    const int64_t x = mesh::DTypeBytes(a.type.dtype);
    const int64_t y = mesh::DTypeBytes(b.type.dtype);
    return x != y ? x > y : a.name < b.name;
  });
  json header = json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  SafetensorsPlan plan;
  plan.header.metadata = metadata;
  int64_t at = 0;
  for (const mesh::NamedType& t : tensors) {
    if (t.name == kMetadata || header.contains(t.name)) {
      return InvalidArgument("safetensors: expected names used once and not " +
                             std::string(kMetadata) + ", got: " + t.name);
    }
    const int64_t end = at + t.type.num_bytes();
    header[t.name] = {
        {"dtype", NameOf(t.type.dtype)}, {"shape", t.type.dims}, {"data_offsets", {at, end}}};
    plan.header.entries.push_back(
        {t.name, std::string(NameOf(t.type.dtype)), t.type.dims, at, end});
    at = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {
    return InvalidArgument(std::string("safetensors: expected names and metadata in UTF-8, got: ") +
                           error.what());
  }
  text.append(static_cast<size_t>(
                  (kAlignment - (8 + static_cast<int64_t>(text.size())) % kAlignment) % kAlignment),
              ' ');
  if (static_cast<int64_t>(text.size()) > kMaxHeader) {
    return InvalidArgument("safetensors: expected a header of at most " + Num(kMaxHeader) +
                           " bytes, got: " + Num(static_cast<int64_t>(text.size())));
  }
  for (int i = 0; i < 8; ++i) {
    plan.header_bytes.push_back(static_cast<char>(text.size() >> (8 * i) & 255));
  }
  plan.header_bytes += text;
  plan.header.data_begin = static_cast<int64_t>(plan.header_bytes.size());
  for (SafetensorsEntry& e : plan.header.entries) {
    e.begin += plan.header.data_begin;
    e.end += plan.header.data_begin;
  }
  return plan;
}

Result<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(const std::string& path) {
  MT_ASSIGN_OR_RETURN(auto file, RawReader::Open(path));
  std::string bytes(static_cast<size_t>(std::min<int64_t>(8, file->size())), '\0');
  MT_RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(bytes))));
  uint64_t length = 0;
  if (bytes.size() == 8) std::memcpy(&length, bytes.data(), 8);
  if (length <= kMaxHeader &&
      static_cast<int64_t>(length) <= file->size() - 8) {  // else the parser says what is wrong
    bytes.resize(8 + length);
    MT_RETURN_IF_ERROR(file->ReadAt(8, std::as_writable_bytes(std::span(bytes)).subspan(8)));
  }
  MT_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(bytes, file->size(), path));
  return std::unique_ptr<SafetensorsReader>(
      new SafetensorsReader(std::move(file), std::move(header)));
}

Result<const SafetensorsEntry*> SafetensorsReader::Lookup(std::string_view name) const {
  const SafetensorsEntry* entry = header_.Find(name);
  if (entry == nullptr) {
    std::vector<std::string> names;
    for (const SafetensorsEntry& e : header_.entries) names.push_back(e.name);
    return NotFound(path() + ": expected a tensor `" + std::string(name) +
                    "`, got: none of that name" + DidYouMean(name, names));
  }
  if (!entry->type()) {
    return Unimplemented(
        path() + ": tensor `" + Excerpt(entry->name) +
        "`: expected BOOL, U8, I32, I64, F16, BF16, F32 or F64, got: " + Excerpt(entry->dtype));
  }
  return entry;
}

Result<mesh::Tensor> SafetensorsReader::Read(std::string_view name) const {
  MT_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, Lookup(name));
  mesh::Tensor out(*entry->type());
  MT_RETURN_IF_ERROR(file_->ReadAt(entry->begin, out.mutable_bytes()));
  return out;
}

Result<mesh::Tensor> SafetensorsReader::ReadSlice(std::string_view name, const mesh::Dims& offsets,
                                                  const mesh::Dims& sizes) const {
  MT_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, Lookup(name));
  const mesh::TensorType type = *entry->type();
  const Box box{offsets, sizes};
  if (!IsInside(box, type.dims)) {
    return InvalidArgument(path() + ": tensor `" + Excerpt(entry->name) +
                           "`: expected a slice inside " + type.ToString() + ", got: another");
  }
  mesh::Tensor out(mesh::TensorType{type.dtype, sizes});
  const Box whole{mesh::Dims(type.dims.size(), 0), type.dims};
  for (const Run& run : CopyRuns(whole, box, mesh::DTypeBytes(type.dtype))) {
    MT_RETURN_IF_ERROR(file_->ReadAt(
        entry->begin + run.from,
        out.mutable_bytes().subspan(static_cast<size_t>(run.to), static_cast<size_t>(run.bytes))));
  }
  return out;
}

Status WriteSafetensors(const std::string& path, const std::map<std::string, mesh::Tensor>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<mesh::NamedType> types;
  for (const auto& [name, tensor] : tensors) types.push_back({name, tensor.type()});
  MT_ASSIGN_OR_RETURN(const SafetensorsPlan plan, PlanSafetensors(std::move(types), metadata));
  const std::string temporary = path + ".tmp." + std::to_string(::getpid());
  MT_ASSIGN_OR_RETURN(auto file, RawWriter::Create(temporary));
  MT_RETURN_IF_ERROR(file->Write(std::as_bytes(std::span(plan.header_bytes))));
  for (const SafetensorsEntry& e : plan.header.entries) {
    MT_RETURN_IF_ERROR(file->Write(tensors.at(e.name).bytes()));
  }
  MT_RETURN_IF_ERROR(file->Close());
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return ErrnoStatus(error, "cannot rename over", path);
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return SyncFolder(folder.empty() ? "." : folder);
}

}  // namespace meshtrain::checkpoint
