#include "runtime/checkpoint/restore.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/safetensors.h"

namespace meshtrain::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string Num(int64_t n) { return std::to_string(n); }

// "ckpt-00000100" -> 100.
std::optional<int64_t> StepOf(const std::string& name) {
  constexpr std::string_view kPrefix = "ckpt-";
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + 8) return std::nullopt;
  const std::string_view digits = std::string_view(name).substr(kPrefix.size());
  if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  return ParseInt(digits);
}

struct Listed {
  std::vector<Candidate> complete, incomplete;  // newest first
  Status unknown;  // of a folder that could not be looked into, and is in neither
};

// Whether something is there. Errors: ErrnoStatus's, where that cannot be told.
Result<fs::file_type> TypeOf(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::none) {
    return ErrnoStatus(error.value(), "cannot look into", path.string());
  }
  return type;
}

Result<Listed> ListFolders(const std::string& folder) {
  MT_RETURN_IF_ERROR(CheckPath(folder));
  Listed out;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory) return out;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::optional<int64_t> step = StepOf(entry->path().filename().string());
    if (!step) continue;
    const Result<fs::file_type> is = TypeOf(entry->path());
    if (is.ok() && *is != fs::file_type::directory) continue;
    const Result<fs::file_type> index = is.ok() ? TypeOf(entry->path() / kIndexName) : is;
    if (!index.ok()) {
      out.unknown = index.status();
      continue;
    }
    const bool there = *index != fs::file_type::not_found;
    (there ? out.complete : out.incomplete).push_back({*step, entry->path().string()});
  }
  if (error) return ErrnoStatus(error.value(), "cannot list", folder);
  for (std::vector<Candidate>* list : {&out.complete, &out.incomplete}) {
    std::sort(list->begin(), list->end(),
              [](const Candidate& a, const Candidate& b) { return a.step > b.step; });
  }
  return out;
}

Status CheckHash(const RawReader& file, int64_t begin, std::span<const std::byte> bytes,
                 uint64_t want, std::string_view what) {
  const uint64_t got = XXH64(bytes.data(), bytes.size(), 0);
  if (got == want) return OkStatus();
  return DataLoss(file.path() + ": bytes " + Num(begin) + " to " +
                  Num(begin + static_cast<int64_t>(bytes.size())) + " (" + std::string(what) +
                  "): expected checksum " + HashText(want) + ", got: " + HashText(got));
}

}  // namespace

Result<std::vector<Candidate>> ListCheckpoints(const std::string& folder) {
  MT_ASSIGN_OR_RETURN(Listed found, ListFolders(folder));
  MT_RETURN_IF_ERROR(found.unknown);
  return std::move(found.complete);
}

std::vector<Candidate> ListIncomplete(const std::string& folder) {
  auto found = ListFolders(folder);
  return found.ok() ? std::move(found->incomplete) : std::vector<Candidate>();
}

Result<Candidate> FindLatest(const std::string& folder) {
  MT_ASSIGN_OR_RETURN(const std::vector<Candidate> all, ListCheckpoints(folder));
  if (all.empty()) return NotFound(folder + ": expected a complete checkpoint, got: none");
  return all.front();
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  const std::string index_path = path + "/" + std::string(kIndexName);
  MT_ASSIGN_OR_RETURN(const std::string text, ReadFile(index_path));
  MT_ASSIGN_OR_RETURN(Index index, Index::Parse(text, index_path));
  const std::optional<int64_t> named = StepOf(fs::path(path).filename().string());
  if (named && *named != index.step) {
    return DataLoss(index_path + ": step: expected " + Num(*named) +
                    ", as its folder is named, got: " + Num(index.step));
  }
  std::vector<std::unique_ptr<RawReader>> files;
  for (const FileRecord& record : index.files) {
    const std::string name = path + "/" + record.name;
    auto file = RawReader::Open(name);
    if (!file.ok() && file.status().code() == StatusCode::kNotFound) {
      return DataLoss(name + ": byte 0: expected the shard file that " + index_path +
                      " names, got: no such file");
    }
    if (!file.ok()) return file.status();
    if ((*file)->size() != record.bytes || record.header_bytes > record.bytes ||
        record.header_bytes < 0) {
      return DataLoss(name + ": byte " + Num(std::min((*file)->size(), record.bytes)) +
                      ": expected a file of " + Num(record.bytes) +
                      " bytes, got: " + Num((*file)->size()));
    }
    std::vector<std::byte> header(static_cast<size_t>(record.header_bytes));
    MT_RETURN_IF_ERROR((*file)->ReadAt(0, header));
    MT_RETURN_IF_ERROR(CheckHash(**file, 0, header, record.header_hash, "header"));
    files.push_back(*std::move(file));
  }
  return std::unique_ptr<Checkpoint>(new Checkpoint(path, std::move(index), std::move(files)));
}

Result<const VariableRecord*> Checkpoint::Find(std::string_view name) const {
  const auto found = index_.variables.find(std::string(name));
  if (found != index_.variables.end()) return &found->second;
  std::vector<std::string> names;
  for (const auto& [n, v] : index_.variables) names.push_back(n);
  return NotFound(path_ + ": expected a variable `" + std::string(name) +
                  "`, got: none of that name" + DidYouMean(name, names));
}

Status Checkpoint::ReadShard(std::string_view name, const VariableRecord& variable,
                             const ShardRecord& shard, const Box& wanted,
                             std::span<std::byte> out) const {
  const RawReader& file = *files_[shard.file];
  const int64_t item = mesh::DTypeBytes(variable.type.dtype);
  const int64_t total = shard.box.num_elements() * item;
  const std::string what = "variable `" + std::string(name) + "`";
  std::vector<std::byte> buffer;  // the piece read last
  int64_t held = -1;
  for (const Run& run : CopyRuns(shard.box, wanted, item)) {
    for (int64_t at = run.from; at < run.from + run.bytes;) {
      const int64_t chunk = at / kChunkBytes;
      const int64_t begin = chunk * kChunkBytes;
      const int64_t size = std::min(kChunkBytes, total - begin);
      const int64_t n = std::min(run.from + run.bytes, begin + size) - at;
      const auto target =
          out.subspan(static_cast<size_t>(run.to + at - run.from), static_cast<size_t>(n));
      if (n == size) {  // the whole piece goes to one place
        MT_RETURN_IF_ERROR(file.ReadAt(shard.begin + begin, target));
        MT_RETURN_IF_ERROR(CheckHash(file, shard.begin + begin, target, shard.chunks[chunk], what));
      } else {
        if (held != chunk) {
          buffer.resize(static_cast<size_t>(size));
          MT_RETURN_IF_ERROR(file.ReadAt(shard.begin + begin, buffer));
          MT_RETURN_IF_ERROR(
              CheckHash(file, shard.begin + begin, buffer, shard.chunks[chunk], what));
          held = chunk;
        }
        std::memcpy(target.data(), buffer.data() + (at - begin), static_cast<size_t>(n));
      }
      at += n;
    }
  }
  return OkStatus();
}

Result<mesh::Tensor> Checkpoint::LoadSlice(std::string_view name, const mesh::Dims& offsets,
                                           const mesh::Dims& sizes) const {
  MT_ASSIGN_OR_RETURN(const VariableRecord* variable, Find(name));
  const Box wanted{offsets, sizes};
  if (!IsInside(wanted, variable->type.dims)) {
    return InvalidArgument(path_ + ": variable `" + std::string(name) +
                           "`: expected a slice inside " + variable->type.ToString() +
                           ", got: another");
  }
  mesh::Tensor out(mesh::TensorType{variable->type.dtype, sizes});
  for (const ShardRecord& shard : variable->shards) {
    MT_RETURN_IF_ERROR(ReadShard(name, *variable, shard, wanted, out.mutable_bytes()));
  }
  return out;
}

Result<mesh::Tensor> Checkpoint::Load(std::string_view name) const {
  MT_ASSIGN_OR_RETURN(const VariableRecord* variable, Find(name));
  return LoadSlice(name, mesh::Dims(variable->type.dims.size(), 0), variable->type.dims);
}

Result<mesh::Tensor> Checkpoint::LoadLocal(std::string_view name, const mesh::Layout& layout,
                                           int64_t rank) const {
  MT_ASSIGN_OR_RETURN(const VariableRecord* variable, Find(name));
  if (layout.IsPartial()) {
    return InvalidArgument(path_ + ": variable `" + std::string(name) +
                           "`: expected a layout without pending sums, got: " + layout.ToString());
  }
  MT_ASSIGN_OR_RETURN(const mesh::Dims local, layout.LocalShape(variable->type.dims));
  const mesh::Layout::Slice slice = layout.SliceOf(rank, variable->type.dims);
  mesh::Tensor out(mesh::TensorType{variable->type.dtype, local});
  std::memset(out.mutable_bytes().data(), 0, out.mutable_bytes().size());
  if (mesh::NumElements(slice.sizes) == 0) {
    return out;  // an uneven split can leave a device nothing
  }
  MT_ASSIGN_OR_RETURN(const mesh::Tensor valid, LoadSlice(name, slice.offsets, slice.sizes));
  if (slice.sizes == local) return valid;
  out.Paste(valid, mesh::Dims(local.size(), 0));
  return out;
}

Status Checkpoint::Verify() const {
  std::vector<std::byte> buffer;
  for (const auto& [name, variable] : index_.variables) {
    for (const ShardRecord& shard : variable.shards) {
      const int64_t total = shard.box.num_elements() * mesh::DTypeBytes(variable.type.dtype);
      for (size_t c = 0; c < shard.chunks.size(); ++c) {
        const int64_t begin = static_cast<int64_t>(c) * kChunkBytes;
        buffer.resize(static_cast<size_t>(std::min(kChunkBytes, total - begin)));
        MT_RETURN_IF_ERROR(files_[shard.file]->ReadAt(shard.begin + begin, buffer));
        MT_RETURN_IF_ERROR(CheckHash(*files_[shard.file], shard.begin + begin, buffer,
                                     shard.chunks[c], "variable `" + name + "`"));
      }
    }
  }
  return OkStatus();
}

Status Checkpoint::Export(const std::string& path,
                          const std::function<bool(std::string_view)>& wanted,
                          const std::map<std::string, std::string>& notes) const {
  std::vector<mesh::NamedType> types;
  for (const auto& [name, variable] : index_.variables) {
    if (!wanted || wanted(name)) types.push_back({name, variable.type});
  }
  std::map<std::string, std::string> metadata = {{"format", "meshtrain"},
                                                 {"step", Num(index_.step)}};
  metadata.insert(notes.begin(), notes.end());
  MT_ASSIGN_OR_RETURN(const SafetensorsPlan plan, PlanSafetensors(std::move(types), metadata));
  const std::string temporary = path + ".tmp." + std::to_string(::getpid());
  MT_ASSIGN_OR_RETURN(auto file, RawWriter::Create(temporary));
  MT_RETURN_IF_ERROR(file->Write(std::as_bytes(std::span(plan.header_bytes))));
  for (const SafetensorsEntry& e : plan.header.entries) {
    MT_ASSIGN_OR_RETURN(const mesh::Tensor value, Load(e.name));
    MT_RETURN_IF_ERROR(file->Write(value.bytes()));
  }
  MT_RETURN_IF_ERROR(file->Close());
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return ErrnoStatus(error, "cannot rename over", path);
  }
  const std::string folder = fs::path(path).parent_path().string();
  return SyncFolder(folder.empty() ? "." : folder);
}

}  // namespace meshtrain::checkpoint
