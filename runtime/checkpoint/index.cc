#include "runtime/checkpoint/index.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/json_depth.h"
#include "runtime/base/text.h"

namespace meshtrain::checkpoint {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "meshtrain-checkpoint";
constexpr int kVersion = 1;

std::string Num(int64_t n) { return std::to_string(n); }

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// What a broken index throws inside Parse; never leaves this file.
struct BadField {
  std::string message;
};

uint64_t HashOf(const json& value) {
  const auto& text = value.get_ref<const std::string&>();
  uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw BadField{"expected a checksum, got: " + Excerpt(text)};
  }
  return hash;
}

// The library's own conversion takes numbers of any kind and size, and cuts what does not fit.
int64_t IntOf(const json& object, const char* key,
              int64_t most = std::numeric_limits<int64_t>::max()) {
  const json& value = object.at(key);
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t(most);
  if (!fits) {
    throw BadField{std::string(key) + ": expected a whole number from 0 to " + Num(most) +
                   ", got: " + Excerpt(Dump(value))};
  }
  return value.get<int64_t>();
}

mesh::Dims DimsOf(const json& object, const char* key) {
  const json& list = object.at(key);
  const bool fits = list.is_array() && std::all_of(list.begin(), list.end(), [](const json& n) {
                      return n.is_number_unsigned() && n.get<uint64_t>() <= uint64_t{1} << 62;
                    });
  if (!fits) {
    throw BadField{std::string(key) + ": expected a list of sizes, got: " + Excerpt(Dump(list))};
  }
  return list.get<mesh::Dims>();
}

json ShardJson(const ShardRecord& s) {
  std::vector<std::string> chunks;
  for (const uint64_t h : s.chunks) chunks.push_back(HashText(h));
  return {{"file", s.file},       {"key", s.key},     {"offsets", s.box.offsets},
          {"sizes", s.box.sizes}, {"begin", s.begin}, {"chunk_xxh64", chunks}};
}

ShardRecord ShardOf(const json& value) {
  ShardRecord s;
  s.file = static_cast<int>(IntOf(value, "file", std::numeric_limits<int>::max()));
  s.key = value.at("key").get<std::string>();
  s.box.offsets = DimsOf(value, "offsets");
  s.box.sizes = DimsOf(value, "sizes");
  s.begin = IntOf(value, "begin");
  for (const json& h : value.at("chunk_xxh64")) s.chunks.push_back(HashOf(h));
  return s;
}

json Body(const Index& index) {
  json files = json::array();
  for (const FileRecord& f : index.files) {
    files.push_back({{"name", f.name},
                     {"bytes", f.bytes},
                     {"header_bytes", f.header_bytes},
                     {"header_xxh64", HashText(f.header_hash)}});
  }
  json variables = json::object();
  for (const auto& [name, v] : index.variables) {
    json shards = json::array();
    for (const ShardRecord& s : v.shards) shards.push_back(ShardJson(s));
    variables[name] = {
        {"type", v.type.ToString()}, {"layout", v.layout}, {"shards", std::move(shards)}};
  }
  return {{"format", kFormat},
          {"version", kVersion},
          {"step", index.step},
          {"generation", index.generation},
          {"mesh", index.mesh},
          {"program_hash", index.program_hash},
          {"data_cursor", index.data_cursor},
          {"metadata", index.metadata},
          {"chunk_bytes", kChunkBytes},
          {"files", std::move(files)},
          {"variables", std::move(variables)}};
}

Index IndexOf(const json& body) {
  Index index;
  if (const int64_t bytes = IntOf(body, "chunk_bytes"); bytes != kChunkBytes) {
    throw BadField{"chunk_bytes: expected " + Num(kChunkBytes) + ", got: " + Num(bytes)};
  }
  index.step = IntOf(body, "step", kMostSteps);
  index.generation = IntOf(body, "generation", kMostSteps);
  index.mesh = body.at("mesh").get<std::string>();
  index.program_hash = body.at("program_hash").get<std::string>();
  index.data_cursor = body.at("data_cursor").get<std::string>();
  index.metadata = body.at("metadata").get<std::map<std::string, std::string>>();
  for (const json& f : body.at("files")) {
    FileRecord file{f.at("name").get<std::string>(), IntOf(f, "bytes"), IntOf(f, "header_bytes"),
                    HashOf(f.at("header_xxh64"))};
    if (file.name.empty() || file.name.find('/') != std::string::npos || file.name == ".." ||
        file.name == "." || !CheckPath(file.name).ok()) {
      throw BadField{"files: expected a plain file name, got: " + Excerpt(file.name)};
    }
    index.files.push_back(std::move(file));
  }
  for (const auto& [name, v] : body.at("variables").items()) {
    VariableRecord variable;
    auto type = mesh::TensorType::Parse(v.at("type").get<std::string>());
    if (!type.ok()) throw BadField{"variable `" + Excerpt(name) + "`: " + type.status().message()};
    variable.type = *std::move(type);
    variable.layout = v.at("layout").get<std::string>();
    for (const json& s : v.at("shards")) variable.shards.push_back(ShardOf(s));
    index.variables.emplace(name, std::move(variable));
  }
  return index;
}

Status CheckVariable(const Index& index, const std::string& name, const VariableRecord& v) {
  const std::string where = "variable `" + Excerpt(name) + "` " + v.type.ToString() + ": ";
  int64_t covered = 0;
  for (size_t i = 0; i < v.shards.size(); ++i) {
    const ShardRecord& s = v.shards[i];
    if (!IsInside(s.box, v.type.dims)) {
      return InvalidArgument(where + "expected its shards inside of it, got: another");
    }
    const int64_t bytes = s.box.num_elements() * mesh::DTypeBytes(v.type.dtype);
    if (s.file < 0 || s.file >= static_cast<int>(index.files.size()) || s.begin < 0 ||
        s.begin > index.files[s.file].bytes - bytes ||
        static_cast<int64_t>(s.chunks.size()) != (bytes + kChunkBytes - 1) / kChunkBytes) {
      return InvalidArgument(
          where + "expected its shards inside their files, with a checksum a piece, got: another");
    }
    for (size_t k = 0; k < i; ++k) {
      if (Intersection(s.box, v.shards[k].box).num_elements() > 0) {
        return InvalidArgument(where + "expected shards that do not overlap, got: shards " +
                               std::to_string(k) + " and " + std::to_string(i));
      }
    }
    covered += s.box.num_elements();
  }
  if (covered != v.type.num_elements()) {
    return InvalidArgument(where + "expected shards that cover it, got: " + Num(covered) + " of " +
                           Num(v.type.num_elements()) + " elements");
  }
  return OkStatus();
}

// Parts of one checkpoint say the same of where they were saved.
Status CheckSameRun(const Index& part, const Index& first) {
  const auto same = [](const char* what, const std::string& got, const std::string& want) {
    if (got == want) return OkStatus();
    return InvalidArgument(std::string("expected the ") + what + " of part 0, " + want +
                           ", got: " + got);
  };
  MT_RETURN_IF_ERROR(same("step", Num(part.step), Num(first.step)));
  MT_RETURN_IF_ERROR(same("generation", Num(part.generation), Num(first.generation)));
  MT_RETURN_IF_ERROR(same("mesh", part.mesh, first.mesh));
  MT_RETURN_IF_ERROR(same("program", part.program_hash, first.program_hash));
  MT_RETURN_IF_ERROR(same("data", part.data_cursor, first.data_cursor));
  for (const auto& [key, value] : first.metadata) {
    const auto found = part.metadata.find(key);
    MT_RETURN_IF_ERROR(
        same(key.c_str(), found == part.metadata.end() ? "none" : found->second, value));
  }
  return part.metadata.size() == first.metadata.size()
             ? OkStatus()
             : InvalidArgument("expected the metadata of part 0, got: more of it");
}

}  // namespace

std::string HashText(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, hash);
  return text;
}

std::string Index::ToJson() const {
  const std::string body = Dump(Body(*this));
  return "{\"index\":" + body + ",\"xxh64\":\"" + HashText(XXH64(body.data(), body.size(), 0)) +
         "\"}\n";
}

Result<Index> Index::Parse(std::string_view text, const std::string& path) {
  MT_ASSIGN_OR_RETURN(Index index, ParsePart(text, path));
  if (Status sound = CheckIndex(index); !sound.ok()) {
    return DataLoss(path + ": bytes 0 to " + std::to_string(text.size()) + ": " + sound.message());
  }
  return index;
}

Result<Index> Index::ParsePart(std::string_view text, const std::string& path) {
  if (const Status deep = CheckJsonDepth(text); !deep.ok()) {
    return DataLoss(path + ": bytes 0 to " + std::to_string(text.size()) + ": " + deep.message());
  }
  try {
    const json whole = json::parse(text);
    const json& body = whole.at("index");
    const std::string compact = Dump(body);
    const uint64_t hash = XXH64(compact.data(), compact.size(), 0);
    if (HashOf(whole.at("xxh64")) != hash) {
      return DataLoss(path + ": bytes 0 to " + std::to_string(text.size()) +
                      ": expected checksum " + Excerpt(whole.at("xxh64").get<std::string>()) +
                      ", got: " + HashText(hash));
    }
    if (body.at("format") != kFormat) {
      throw BadField{"format: expected " + std::string(kFormat) +
                     ", got: " + Excerpt(Dump(body.at("format")))};
    }
    if (const int64_t version = IntOf(body, "version"); version > kVersion) {
      return Unimplemented(path + ": version: expected at most " + Num(kVersion) +
                           ", got: " + Num(version));
    }
    return IndexOf(body);
  } catch (const json::parse_error& error) {
    return DataLoss(path + ": byte " + std::to_string(error.byte > 0 ? error.byte - 1 : 0) +
                    ": expected JSON, got: " + Excerpt(error.what()));
  } catch (const json::exception& error) {
    return DataLoss(path + ": bytes 0 to " + std::to_string(text.size()) +
                    ": expected a checkpoint's index, got: " + Excerpt(error.what()));
  } catch (const BadField& bad) {
    return DataLoss(path + ": bytes 0 to " + std::to_string(text.size()) + ": " + bad.message);
  }
}

Status CheckIndex(const Index& index) {
  for (const auto& [name, v] : index.variables) MT_RETURN_IF_ERROR(CheckVariable(index, name, v));
  return OkStatus();
}

Result<Index> MergeIndexes(const std::vector<Index>& parts) {
  if (parts.empty()) return InvalidArgument("checkpoint: expected at least one part, got: none");
  Index all = parts[0];
  for (size_t p = 1; p < parts.size(); ++p) {
    const Index& part = parts[p];
    MT_RETURN_IF_ERROR(
        CheckSameRun(part, all).At("checkpoint: part " + Num(static_cast<int64_t>(p))));
    const int first = static_cast<int>(all.files.size());
    all.files.insert(all.files.end(), part.files.begin(), part.files.end());
    for (const auto& [name, v] : part.variables) {
      VariableRecord& mine =
          all.variables.try_emplace(name, VariableRecord{v.type, v.layout, {}}).first->second;
      if (mine.type != v.type) {
        return InvalidArgument("checkpoint: variable `" + name + "`: expected " +
                               mine.type.ToString() + " in each part, got: " + v.type.ToString());
      }
      for (ShardRecord shard : v.shards) {
        shard.file += first;
        mine.shards.push_back(std::move(shard));
      }
    }
  }
  MT_RETURN_IF_ERROR(CheckIndex(all).At("checkpoint"));
  return all;
}

}  // namespace meshtrain::checkpoint
