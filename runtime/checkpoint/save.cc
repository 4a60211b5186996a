#include "runtime/checkpoint/save.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/checkpoint/raw_file.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/safetensors.h"

namespace meshtrain::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string List(const mesh::Dims& offsets, const mesh::Dims& sizes) {
  std::string text = "[";
  for (size_t d = 0; d < offsets.size(); ++d) {
    if (d > 0) text += ",";
    text += std::to_string(offsets[d]) + ":" + std::to_string(offsets[d] + sizes[d]);
  }
  return text + "]";
}

// A block's name in its file: the variable's, with the slice where it is not the whole.
std::string KeyOf(const SavedVariable& v, const Block& b) {
  return b.value.dims() == v.type.dims ? v.name : v.name + List(b.offsets, b.value.dims());
}

struct Part {
  const SavedVariable* variable;
  const Block* block;
};

Result<std::map<std::string, Part>> PartsByKey(const Snapshot& snapshot) {
  std::map<std::string, Part> parts;
  for (const SavedVariable& v : snapshot.variables) {
    for (const Block& b : v.blocks) {
      if (b.value.type().dtype != v.type.dtype ||
          !IsInside({b.offsets, b.value.dims()}, v.type.dims)) {
        return InvalidArgument("checkpoint: variable `" + v.name + "`: expected blocks of " +
                               v.type.ToString() + ", got: " + b.value.type().ToString() + " at " +
                               List(b.offsets, b.value.dims()));
      }
      if (!parts.emplace(KeyOf(v, b), Part{&v, &b}).second) {
        return InvalidArgument("checkpoint: variable `" + v.name +
                               "`: expected each block once, got: " + KeyOf(v, b) + " twice");
      }
    }
  }
  return parts;
}

// One more than that of a complete checkpoint of the same step, whose files must survive until the
// commit.
int64_t NextGeneration(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + std::string(kIndexName);
  const Result<std::string> text = ReadFile(path);
  if (!text.ok()) return 0;
  const Result<Index> index = Index::Parse(*text, path);
  return index.ok() ? index->generation + 1 : 0;
}

// The same where a generation is given: its saves of this step have numbers of their own, which
// every process finds alike, because the checkpoint stays until all of them have theirs.
int64_t NextInGeneration(const std::string& checkpoint, int64_t generation) {
  constexpr int64_t kSaves = 256;
  const int64_t first = generation * kSaves;
  return std::clamp(NextGeneration(checkpoint), first, first + kSaves - 1);
}

std::string ShardName(int process, int processes, int64_t generation) {
  char name[80];
  std::snprintf(name, sizeof name, "shard-%05d-of-%05d", process, processes);
  return std::string(name) + (generation == 0 ? "" : "-g" + std::to_string(generation)) +
         ".safetensors";
}

Status WriteTensor(RawWriter& file, std::span<const std::byte> bytes,
                   std::vector<uint64_t>* chunks) {
  for (size_t at = 0; at < bytes.size(); at += kChunkBytes) {
    const auto chunk = bytes.subspan(at, std::min<size_t>(kChunkBytes, bytes.size() - at));
    chunks->push_back(XXH64(chunk.data(), chunk.size(), 0));
    MT_RETURN_IF_ERROR(file.Write(chunk));
  }
  return OkStatus();
}

Status RemoveAll(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? ErrnoStatus(error.value(), "cannot remove", path.string()) : OkStatus();
}

// Best effort: what cannot be removed now is in nobody's way.
void LogRemoval(const Status& removed) {
  if (!removed.ok()) {
    LogWarning("cannot remove an old checkpoint's file", {{"error", removed.message()}});
  }
}

void SweepFolder(const std::string& checkpoint, const Index& index) {
  std::set<std::string> wanted = {std::string(kIndexName)};
  for (const FileRecord& f : index.files) wanted.insert(f.name);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(checkpoint, error)) {
    if (!wanted.contains(entry.path().filename().string())) LogRemoval(RemoveAll(entry.path()));
  }
}

// The index of one process's part, left for process 0; swept away by the commit.
std::string PartPath(const std::string& checkpoint, const SaveOptions& options, int process) {
  return fmt::format("{}/part-{}-{:05}-of-{:05}.json", checkpoint, options.generation, process,
                     options.processes);
}

// The parts of processes 1 and up, as they appear.
Result<std::vector<Index>> CollectParts(const std::string& checkpoint, const SaveOptions& options) {
  constexpr Duration kLook =
      std::chrono::milliseconds(20);  // files have no other bell across hosts
  const Duration end = SystemClock().Monotonic() + options.parts_timeout;
  std::vector<Index> parts;
  for (int process = 1; process < options.processes; ++process) {
    const std::string path = PartPath(checkpoint, options, process);
    for (;;) {
      const Result<std::string> text = ReadFile(path);
      if (text.ok()) {
        MT_ASSIGN_OR_RETURN(Index part, Index::ParsePart(*text, path));
        parts.push_back(std::move(part));
        break;
      }
      if (text.status().code() != StatusCode::kNotFound) return text.status();
      if (options.abandon.stop_requested()) {
        return Cancelled(
            fmt::format("{}: abandoned without the part of process {}", path, process));
      }
      if (SystemClock().Monotonic() >= end) {
        return DeadlineExceeded(fmt::format(
            "{}: expected the part of process {} of {} (a folder that all processes "
            "share), got: nothing in {} s",
            path, process, options.processes,
            std::chrono::duration_cast<std::chrono::seconds>(options.parts_timeout).count()));
      }
      std::this_thread::sleep_for(kLook);
    }
  }
  return parts;
}

// A checkpoint of another run. While several processes save, the others may be writing their parts
// of a later one into the same folder by now: only what its index names goes then, and the folder
// where nothing else is in it.
Status RemoveReplaced(const std::string& checkpoint, int processes) {
  if (processes == 1) return RemoveCheckpoint(checkpoint);
  const std::string path = checkpoint + "/" + std::string(kIndexName);
  const Result<std::string> text = ReadFile(path);
  const Result<Index> index = text.ok() ? Index::Parse(*text, path) : text.status();
  MT_RETURN_IF_ERROR(RemoveAll(path));
  if (!index.ok()) return OkStatus();
  for (const FileRecord& f : index->files) {
    MT_RETURN_IF_ERROR(RemoveAll(checkpoint + "/" + f.name));
  }
  (void)::rmdir(checkpoint.c_str());
  return OkStatus();
}

// Those of later steps, which a run left that went further or whose checkpoints are damaged,
// neither go nor count: what was saved just now is the one checkpoint that is known to be whole.
void Prune(const std::string& folder, int64_t newest, const SaveOptions& options) {
  const Result<std::vector<Candidate>> complete = ListCheckpoints(folder);
  if (!complete.ok()) return;
  std::set<int64_t> steps;
  int64_t kept = 0;
  for (const Candidate& c : *complete) {
    steps.insert(c.step);
    if (options.keep <= 0 || c.step > newest || ++kept <= options.keep) continue;
    if (c.step != options.pinned) LogRemoval(RemoveCheckpoint(c.path));
  }
  // Leftovers of crashed saves, older than what is safe now.
  for (const Candidate& c : ListIncomplete(folder)) {
    if (c.step < newest && !steps.contains(c.step)) LogRemoval(RemoveCheckpoint(c.path));
  }
}

}  // namespace

Status RemoveCheckpoint(const std::string& checkpoint) {
  const std::string index = checkpoint + "/" + std::string(kIndexName);
  if (::unlink(index.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, "cannot remove", index);
  }
  return RemoveAll(checkpoint);
}

std::string CheckpointFolder(const std::string& folder, int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "/ckpt-%08lld", static_cast<long long>(step));
  return folder + name;
}

Status CheckFinite(const Snapshot& snapshot) {
  for (const SavedVariable& v : snapshot.variables) {
    for (const Block& b : v.blocks) {
      const int64_t bad = mesh::CountNotFinite(b.value);
      if (bad == 0) continue;
      return Internal("step " + std::to_string(snapshot.step) + " is not saved: variable `" +
                      v.name + "`: expected finite values, got: " + std::to_string(bad) + " of " +
                      std::to_string(b.value.type().num_elements()) + " that are not")
          .From(Origin::kNumbers);
    }
  }
  return OkStatus();
}

Result<std::string> CheckFolder(const std::string& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return folder;
  return NotFound(folder + ": expected the folder of checkpoints to stay while the run writes " +
                  "into it, got: it was removed or moved");
}

Result<Index> WritePart(const std::string& folder, const Snapshot& snapshot, int process,
                        int processes, int64_t generation) {
  if (snapshot.step < 0 || snapshot.step > kMostSteps || process < 0 || process >= processes) {
    return InvalidArgument("checkpoint: expected a step from 0 to " + std::to_string(kMostSteps) +
                           " and a process below " + std::to_string(processes) + ", got: step " +
                           std::to_string(snapshot.step) + ", process " + std::to_string(process));
  }
  MT_RETURN_IF_ERROR(CheckFinite(snapshot));
  const std::string checkpoint = CheckpointFolder(folder, snapshot.step);
  MT_RETURN_IF_ERROR(MakeDirectories(checkpoint));
  MT_ASSIGN_OR_RETURN(const auto parts, PartsByKey(snapshot));
  std::vector<mesh::NamedType> types;
  for (const auto& [key, part] : parts) types.push_back({key, part.block->value.type()});
  MT_ASSIGN_OR_RETURN(const SafetensorsPlan plan,
                      PlanSafetensors(std::move(types), {{"step", std::to_string(snapshot.step)},
                                                         {"format", "meshtrain"}}));

  Index index{.step = snapshot.step,
              .generation = generation > 0 ? generation : NextGeneration(checkpoint),
              .mesh = snapshot.mesh,
              .program_hash = snapshot.program_hash,
              .data_cursor = snapshot.data_cursor,
              .metadata = snapshot.metadata};
  const std::string name = ShardName(process, processes, index.generation);
  for (const SavedVariable& v : snapshot.variables) {
    if (!index.variables.emplace(v.name, VariableRecord{v.type, v.layout, {}}).second) {
      return InvalidArgument("checkpoint: expected each variable once, got: `" + v.name +
                             "` twice");
    }
  }
  auto created = RawWriter::Create(checkpoint + "/" + name);
  if (created.status().code() == StatusCode::kNotFound) {
    // Process 0 has removed it meanwhile, empty: see RemoveReplaced.
    MT_RETURN_IF_ERROR(MakeDirectories(checkpoint));
    created = RawWriter::Create(checkpoint + "/" + name);
  }
  MT_ASSIGN_OR_RETURN(auto file, std::move(created));
  MT_RETURN_IF_ERROR(file->Write(std::as_bytes(std::span(plan.header_bytes))));
  for (const SafetensorsEntry& e : plan.header.entries) {
    const Part& part = parts.at(e.name);
    ShardRecord shard{
        .file = 0, .key = e.name, .box = {part.block->offsets, e.dims}, .begin = e.begin};
    MT_RETURN_IF_ERROR(WriteTensor(*file, part.block->value.bytes(), &shard.chunks));
    index.variables.at(part.variable->name).shards.push_back(std::move(shard));
  }
  const int64_t bytes = file->position();
  MT_RETURN_IF_ERROR(file->Close());
  MT_RETURN_IF_ERROR(SyncFolder(checkpoint));
  index.files.push_back({name, bytes, plan.header.data_begin,
                         XXH64(plan.header_bytes.data(), plan.header_bytes.size(), 0)});
  return index;
}

Result<std::string> Commit(const std::string& folder, const std::vector<Index>& parts,
                           const SaveOptions& options) {
  MT_ASSIGN_OR_RETURN(Index index, MergeIndexes(parts));
  index.metadata.insert(options.notes.begin(), options.notes.end());
  const std::string checkpoint = CheckpointFolder(folder, index.step);
  MT_RETURN_IF_ERROR(
      WriteFileAtomically(checkpoint + "/" + std::string(kIndexName), index.ToJson()));
  MT_RETURN_IF_ERROR(SyncFolder(folder));
  SweepFolder(checkpoint, index);
  for (const std::string& other : options.replaces) {
    if (fs::path(other) == fs::path(checkpoint)) continue;
    LogRemoval(RemoveReplaced(other, options.processes));
  }
  Prune(folder, index.step, options);
  return checkpoint;
}

Result<std::string> Save(const std::string& folder, const Snapshot& snapshot,
                         const SaveOptions& given) {
  const std::string checkpoint = CheckpointFolder(folder, snapshot.step);
  SaveOptions options = given;
  if (given.generation > 0) options.generation = NextInGeneration(checkpoint, given.generation);
  MT_ASSIGN_OR_RETURN(Index part, WritePart(folder, snapshot, options.process, options.processes,
                                            options.generation));
  if (options.processes == 1) return Commit(folder, {std::move(part)}, options);
  if (options.process != 0) {
    MT_RETURN_IF_ERROR(
        WriteFileAtomically(PartPath(checkpoint, options, options.process), part.ToJson()));
    return checkpoint;
  }
  MT_ASSIGN_OR_RETURN(std::vector<Index> parts, CollectParts(checkpoint, options));
  parts.insert(parts.begin(), std::move(part));
  return Commit(folder, parts, options);
}

}  // namespace meshtrain::checkpoint
