// Store's way back after its process was killed.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/save.h"
#include "runtime/parameter/server/store.h"

namespace meshtrain::parameter {

using mesh::Tensor;
namespace fs = std::filesystem;

namespace {

// Whole tensors of the types, from bytes that hold exactly them.
Result<std::vector<Tensor>> TensorsFrom(Bytes payload, const std::vector<mesh::TensorType>& types) {
  std::vector<Tensor> tensors;
  for (const mesh::TensorType& type : types) {
    const auto size = static_cast<size_t>(type.num_bytes());
    if (size > payload.size()) {
      return DataLoss("expected the tensors that the record names, got: fewer bytes");
    }
    Tensor tensor(type);
    std::copy_n(payload.begin(), size, tensor.mutable_bytes().begin());
    payload = payload.subspan(size);
    tensors.push_back(std::move(tensor));
  }
  if (!payload.empty()) {
    return DataLoss("expected the tensors that the record names, got: more bytes");
  }
  return tensors;
}

// Of "12,13", which kVersionsKey holds, the server's; -1: none.
int64_t VersionOf(std::string_view versions, int32_t server) {
  for (; server > 0; --server) {
    const size_t comma = versions.find(',');
    if (comma == std::string_view::npos) return -1;
    versions.remove_prefix(comma + 1);
  }
  int64_t version = -1;
  const std::string_view text = versions.substr(0, versions.find(','));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  return error == std::errc() && end == text.data() + text.size() ? version : -1;
}

}  // namespace

Status Store::Recover() {
  const std::string path = TermPath();
  const auto file = MappedFile::Open(path);
  if (!file.ok() && file.status().code() == StatusCode::kNotFound) return Forget();
  if (!file.ok()) return file.status();
  MT_ASSIGN_OR_RETURN(const ScannedLog records, ScanLog((*file)->bytes(), path));
  if (records.records.empty()) return Forget();  // killed while it was set up, before it said so
  MT_ASSIGN_OR_RETURN(const SetUpRequest request, Decode<SetUpRequest>(records.records[0].head));
  MT_RETURN_IF_ERROR(Begin(request));
  for (size_t i = 1; i < records.records.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const DefineRequest define, Decode<DefineRequest>(records.records[i].head));
    MT_RETURN_IF_ERROR(Prepare(define.definition).At(path));
    ++definitions_;
  }
  MT_ASSIGN_OR_RETURN(term_log_, LogWriter::Reopen(path, records.end));
  MT_RETURN_IF_ERROR(RecoverLog());
  PublishCatalogue();
  std::vector<std::string> pulled;
  for (const auto& [name, state] : states_) {
    if (state.spec.pulled) pulled.push_back(name);
  }
  LogInfo("parameter server is back", {{"folder", options_.folder},
                                       {"term", std::to_string(term())},
                                       {"version", std::to_string(version_)}});
  return Publish(pulled);
}

std::string Store::ToldFrom(const std::string& folder) const {
  const fs::path from = fs::path(options_.folder).lexically_normal();
  const fs::path told = fs::path(folder).lexically_normal().lexically_relative(from);
  const bool holds_the_log =
      !told.empty() && std::all_of(told.begin(), told.end(), [](const fs::path& part) {
        return part.empty() || part == "..";
      });
  if (holds_the_log) return told.string();
  std::error_code error;
  const fs::path absolute = fs::absolute(folder, error);
  return error ? folder : absolute.string();
}

std::string Store::FolderOf(const Base& base) const {
  const fs::path told(base.checkpoint_folder);
  if (told.empty() || *told.begin() != "..") return base.checkpoint_folder;
  return (fs::path(options_.folder) / told).lexically_normal().string();
}

Result<std::string> Store::WhyUnusable(const Base& base) const {
  if (base.term != term()) return "of term " + std::to_string(base.term);
  if (base.checkpoint_step < 0) return std::string();
  const std::string path = checkpoint::CheckpointFolder(FolderOf(base), base.checkpoint_step);
  const auto checkpoint = checkpoint::Checkpoint::Open(path);
  if (checkpoint.status().code() == StatusCode::kNotFound) {
    return path + ": never complete, or removed";
  }
  if (checkpoint.status().code() == StatusCode::kDataLoss) return checkpoint.status().message();
  if (!checkpoint.ok()) return checkpoint.status();
  const auto& metadata = (*checkpoint)->index().metadata;
  const auto of = [&](std::string_view key) {
    const auto it = metadata.find(std::string(key));
    return it == metadata.end() ? std::string() : it->second;
  };
  if (of(kTermKey) != std::to_string(term())) return path + ": of another run";
  // One step may be saved twice: the segment's cut, or the one before it?
  if (VersionOf(of(kVersionsKey), setup_->server) != base.version) {
    return path + ": of versions " + of(kVersionsKey) + ", not " + std::to_string(base.version);
  }
  return std::string();
}

Status Store::SetAside(const Status& why) {
  const std::string aside = options_.folder + "/aside";
  LogError("the log of this parameter server leads to no state: it is set aside",
           {{"folder", options_.folder}, {"aside", aside}, {"error", why.message()}});
  Clear();
  std::error_code error;
  fs::remove_all(aside, error);
  if (error) return ErrnoStatus(error.value(), "cannot remove", aside);
  MT_RETURN_IF_ERROR(MakeDirectories(aside));
  const auto move = [&](const std::string& path) {
    const std::string to = aside + path.substr(options_.folder.size());
    if (::rename(path.c_str(), to.c_str()) == 0) return OkStatus();
    return ErrnoStatus(errno, "cannot set aside", path);
  };
  // The term first: without it nobody reads the segments.
  MT_RETURN_IF_ERROR(move(TermPath()));
  MT_RETURN_IF_ERROR(SyncFolder(options_.folder));
  MT_ASSIGN_OR_RETURN(const std::vector<Segment> segments, ListSegments(options_.folder));
  for (const Segment& s : segments)
    MT_RETURN_IF_ERROR(move(SegmentPath(options_.folder, s.number)));
  return OkStatus();
}

Status Store::RecoverLog() {
  MT_ASSIGN_OR_RETURN(const std::vector<Segment> segments, ListSegments(options_.folder));
  struct Read {
    Segment segment;
    std::unique_ptr<MappedFile> file;
    ScannedLog log;
    Base base;
  };
  std::vector<Read> read;
  for (const Segment& segment : segments) {
    segment_number_ = std::max(segment_number_, segment.number);
    Read one{.segment = segment};
    MT_ASSIGN_OR_RETURN(one.file, MappedFile::Open(segment.path));
    MT_ASSIGN_OR_RETURN(one.log, ScanLog(one.file->bytes(), segment.path));
    if (one.log.records.empty()) {
      // Killed while it was begun; pushes go into a segment only after that.
      MT_RETURN_IF_ERROR(RemoveFile(segment.path));
      continue;
    }
    MT_ASSIGN_OR_RETURN(LogRecord first, Decode<LogRecord>(one.log.records[0].head));
    if (!std::holds_alternative<Base>(first)) {
      return DataLoss(segment.path +
                      ": byte 0: expected the state that the log goes on from, got: a push");
    }
    one.base = std::get<Base>(std::move(first));
    read.push_back(std::move(one));
  }
  if (read.empty()) {
    // Killed before the first segment stood: nothing was acknowledged.
    return BeginSegment({.term = term(), .initial = true}, {});
  }
  size_t from = read.size();
  std::string whys;
  while (from > 0) {
    MT_ASSIGN_OR_RETURN(const std::string why, WhyUnusable(read[from - 1].base));
    if (why.empty()) break;
    whys += (whys.empty() ? "" : "; ") + why;
    --from;
  }
  if (from == 0) {
    return DataLoss(options_.folder + ": expected a segment whose state is here, got: " + whys);
  }
  --from;
  MT_RETURN_IF_ERROR(
      ApplyBase(read[from].base, read[from].log.records[0].payload).At(read[from].segment.path));
  for (size_t i = from; i < read.size(); ++i) {
    if (read[i].base.version != version_) {
      return DataLoss(
          read[i].segment.path + ": expected it to go on from version " + std::to_string(version_) +
          ", where the segment before ends, got: " + std::to_string(read[i].base.version));
    }
    MT_RETURN_IF_ERROR(Replay(read[i].log, read[i].segment.path));
    if (i + 1 < read.size()) {
      old_segments_.push_back({read[i].segment, read[i].log.end, read[i].base.checkpoint_step});
    }
  }
  Read& last = read.back();
  log_checkpoint_step_ = last.base.checkpoint_step;
  last.file.reset();
  MT_ASSIGN_OR_RETURN(log_, LogWriter::Reopen(last.segment.path, last.log.end));
  for (size_t i = 0; i < from; ++i) MT_RETURN_IF_ERROR(RemoveFile(read[i].segment.path));
  return OkStatus();
}

Status Store::ApplyBase(const Base& base, Bytes payload) {
  std::unique_ptr<checkpoint::Checkpoint> from;
  if (base.checkpoint_step >= 0) {
    MT_ASSIGN_OR_RETURN(from, checkpoint::Checkpoint::Open(checkpoint::CheckpointFolder(
                                  FolderOf(base), base.checkpoint_step)));
  } else if (base.initial && !setup_->restore.empty()) {
    MT_ASSIGN_OR_RETURN(from, checkpoint::Checkpoint::Open(setup_->restore));
  }
  if (from != nullptr) {
    std::vector<ServerState> states;
    for (const std::string& name : order_) {
      const State& state = states_.at(name);
      // Copies stand in the record; what was defined after a cut is not in its checkpoint.
      if (base.initial || (state.definition < base.definitions && !state.spec.copy)) {
        states.push_back(state.spec);
      }
    }
    MT_RETURN_IF_ERROR(Restore(*from, states));
  }
  std::vector<mesh::TensorType> types;
  for (const mesh::NamedType& state : base.inline_states) types.push_back(state.type);
  MT_ASSIGN_OR_RETURN(const std::vector<Tensor> values, TensorsFrom(payload, types));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto it = states_.find(base.inline_states[i].name);
    if (it == states_.end()) {
      return DataLoss("expected states of this term, got: `" + base.inline_states[i].name + "`");
    }
    MT_RETURN_IF_ERROR(session_->Write(it->second.variable, values[i]));
  }
  // What was defined after the record was written, and is in no push before it.
  std::vector<ServerState> later;
  for (const std::string& name : order_) {
    const State& state = states_.at(name);
    if (!base.initial && state.definition >= base.definitions) later.push_back(state.spec);
  }
  if (!later.empty() && !setup_->restore.empty()) {
    MT_ASSIGN_OR_RETURN(const auto restore, checkpoint::Checkpoint::Open(setup_->restore));
    MT_RETURN_IF_ERROR(Restore(*restore, later));
  }
  version_ = base.version;
  seen_ = PushTable::FromEntries(base.seen);
  return OkStatus();
}

Status Store::Replay(const ScannedLog& log, const std::string& path) {
  std::vector<std::string> changed;
  for (size_t i = 1; i < log.records.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const LogRecord record, Decode<LogRecord>(log.records[i].head));
    const auto* push = std::get_if<LoggedPush>(&record);
    if (push == nullptr || push->version != version_ + 1) {
      return DataLoss(path + ": record " + std::to_string(i) + ": expected the push to version " +
                      std::to_string(version_ + 1) +
                      ", got: " + (push == nullptr ? "no push" : std::to_string(push->version)));
    }
    std::vector<mesh::TensorType> types;
    if (!push->update.empty()) {
      const auto it = updates_.find(push->update);
      if (it == updates_.end()) {
        return DataLoss(path + ": expected a known update, got: `" + push->update + "`");
      }
      types = it->second.inputs;
    }
    for (const std::string& name : push->names) {
      const auto it = states_.find(name);
      if (it == states_.end()) {
        return DataLoss(path + ": expected a known state, got: `" + name + "`");
      }
      types.push_back(it->second.spec.type);
    }
    MT_ASSIGN_OR_RETURN(const std::vector<Tensor> values,
                        TensorsFrom(log.records[i].payload, types));
    MT_RETURN_IF_ERROR(Run(push->update, push->names, values, &changed).At(path));
    version_ = push->version;
    seen_.Add(push->id, push->settled);
  }
  return OkStatus();
}

}  // namespace meshtrain::parameter
