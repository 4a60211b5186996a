// Long: states, log and checkpoints of one term change together, and a kill may come between any
// two steps.
#include "runtime/parameter/server/store.h"

#include <algorithm>
#include <set>

#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/checkpoint/save.h"
#include "runtime/execute/loaded_step.h"

namespace meshtrain::parameter {

using mesh::Tensor;
using mesh::TensorType;
using program::Variable;

namespace {

mesh::Layout LayoutFor(const TensorType& type) {
  return mesh::Layout::Replicated(mesh::Mesh(), type.rank());
}

Status OtherTerm(int64_t got, int64_t ours) {
  return FailedPrecondition("expected term " + std::to_string(ours) +
                            ", got: " + std::to_string(got));
}

}  // namespace

Store::~Store() = default;

Result<std::unique_ptr<Store>> Store::Open(StoreOptions options) {
  auto store = std::unique_ptr<Store>(new Store(std::move(options)));
  if (store->logs()) {
    MT_RETURN_IF_ERROR(MakeDirectories(store->options_.folder));
    Status recovered = store->Recover();
    if (recovered.code() == StatusCode::kDataLoss || recovered.code() == StatusCode::kNotFound) {
      recovered = store->SetAside(recovered);
    }
    MT_RETURN_IF_ERROR(recovered);
  }
  return store;
}

// --- terms and definitions

Status Store::SetUp(const SetUpRequest& request) {
  if (setup_ && *setup_ == request) return OkStatus();
  // One that could not be begun may be tried again, but those before it are over.
  const int64_t over = setup_ ? setup_->term : std::max<int64_t>(tried_term_ - 1, 0);
  if (request.term <= over) {
    return FailedPrecondition("expected a term after " + std::to_string(over) +
                              ", got: " + std::to_string(request.term) +
                              " (of a coordinator that was replaced)");
  }
  tried_term_ = request.term;
  MT_RETURN_IF_ERROR(Forget().From(Origin::kOutput));
  Status status = Begin(request);
  if (status.ok()) status = LogSession(request).From(Origin::kOutput);
  // Half a term is none: the same request would find it there, and pushes a log that is not.
  if (!status.ok()) Clear();
  return status;
}

Status Store::LogSession(const SetUpRequest& request) {
  if (!logs()) return OkStatus();
  MT_ASSIGN_OR_RETURN(term_log_, LogWriter::Create(TermPath()));
  MT_RETURN_IF_ERROR(term_log_->Write(Encode(request), {}));
  MT_RETURN_IF_ERROR(term_log_->Sync());
  return BeginSegment({.term = request.term, .initial = true}, {});
}

Status Store::Forget() {
  Clear();  // first: what is on the disk may be half gone when this returns
  if (!logs()) return OkStatus();
  // The term first: without it nobody reads the segments.
  MT_RETURN_IF_ERROR(RemoveFile(TermPath()));
  MT_RETURN_IF_ERROR(SyncFolder(options_.folder));
  MT_ASSIGN_OR_RETURN(const std::vector<Segment> segments, ListSegments(options_.folder));
  for (const Segment& s : segments) MT_RETURN_IF_ERROR(RemoveFile(s.path));
  return OkStatus();
}

// As a store that has no term; the folder stays as it is.
void Store::Clear() {
  term_log_.reset();
  log_.reset();
  old_segments_.clear();
  setup_.reset();
  definitions_ = version_ = segment_number_ = 0;
  log_checkpoint_step_ = -1;
  seen_ = {};
  restore_.reset();
  updates_.clear();
  states_.clear();
  order_.clear();
  session_.reset();
  broken_ = {};
  no_room_since_.reset();
  newest_ = std::make_shared<const StoreVersion>();
  catalogue_ = std::make_shared<const Catalogue>();
}

Status Store::Begin(const SetUpRequest& request) {
  MT_ASSIGN_OR_RETURN(
      session_,
      execute::Session::Create(
          // CheckPush has looked at what an update takes.
          {.threads = options_.threads, .memory = options_.memory, .guard_updates = false}));
  setup_ = request;
  PublishCatalogue();
  return Publish({});
}

Status Store::Define(const DefineRequest& request) {
  if (request.term != term() || !setup_) return OtherTerm(request.term, term());
  if (request.number < definitions_) return OkStatus();
  if (request.number > definitions_) {
    return FailedPrecondition("expected definition " + std::to_string(definitions_) +
                              ", got: " + std::to_string(request.number));
  }
  const size_t states_before = order_.size();
  std::set<std::string> updates_before;
  for (const auto& [name, update] : updates_) updates_before.insert(name);

  Status status = Prepare(request.definition);
  if (status.ok() && !setup_->restore.empty() && !request.definition.states.empty()) {
    if (restore_ == nullptr) {
      auto opened = checkpoint::Checkpoint::Open(setup_->restore);
      status = opened.status();
      if (opened.ok()) restore_ = std::move(*opened);
    }
    if (status.ok()) status = Restore(*restore_, request.definition.states);
    status = status.From(Origin::kOutput);
  }
  if (status.ok() && logs()) {
    status = term_log_->Write(Encode(request), {});
    if (status.ok()) status = term_log_->Sync();
    status = status.From(Origin::kOutput);
  }
  if (!status.ok()) {
    std::erase_if(updates_, [&](const auto& item) { return !updates_before.contains(item.first); });
    while (order_.size() > states_before) {
      const auto it = states_.find(order_.back());
      if (const Status forgotten = session_->Forget(it->second.variable); !forgotten.ok()) {
        broken_ = forgotten;
      }
      states_.erase(it);
      order_.pop_back();
    }
    return status;
  }
  ++definitions_;
  PublishCatalogue();
  std::vector<std::string> changed;
  for (const ServerState& state : request.definition.states) {
    if (state.pulled) changed.push_back(state.name);
  }
  return Publish(changed);
}

// Makes the states, with their initial values, and the updates. What it made stays on an error;
// Define takes it back.
Status Store::Prepare(const Definition& definition) {
  for (const ServerState& spec : definition.states) {
    if (states_.contains(spec.name)) {
      return InvalidArgument("expected each state once, got: `" + spec.name + "` twice");
    }
    const Variable variable(spec.name, spec.type, spec.pulled);
    MT_RETURN_IF_ERROR(session_->Declare(variable, LayoutFor(spec.type)));
    states_.emplace(spec.name, State{spec, variable, definitions_});
    order_.push_back(spec.name);
  }
  const auto load = [&](const Program& program) -> Result<std::unique_ptr<execute::LoadedStep>> {
    std::vector<Variable> variables;
    for (const program::State& state : program.states) {
      const auto it = states_.find(state.name);
      if (it == states_.end() || it->second.spec.type != program.type(state.entry)) {
        return InvalidArgument("program " + program.name +
                               ": expected states of this server, got: `" + state.name + "` of " +
                               program.type(state.entry).ToString());
      }
      variables.push_back(it->second.variable);
    }
    return session_->Load(program, mesh::Mesh(), variables, {});
  };
  if (!definition.states.empty()) {
    MT_ASSIGN_OR_RETURN(const auto init, load(definition.init));
    MT_RETURN_IF_ERROR(init->Run());
  }
  for (const NamedProgram& named : definition.updates) {
    if (named.name.empty() || updates_.contains(named.name)) {
      return InvalidArgument("expected a name of its own for each update, got: `" + named.name +
                             "`");
    }
    LoadedUpdate update;
    for (const program::Port& input : named.program.inputs) {
      update.inputs.push_back(named.program.type(input.value));
    }
    for (const program::State& state : named.program.states) {
      const auto it = states_.find(state.name);
      if (state.exit != state.entry && it != states_.end() && it->second.spec.pulled) {
        update.pulled.push_back(state.name);
      }
    }
    MT_ASSIGN_OR_RETURN(update.step, load(named.program));
    updates_.emplace(named.name, std::move(update));
  }
  return OkStatus();
}

Status Store::Restore(const checkpoint::Checkpoint& checkpoint,
                      const std::vector<ServerState>& states) {
  for (const ServerState& state : states) {
    MT_ASSIGN_OR_RETURN(const Tensor value,
                        checkpoint.LoadSlice(state.global_name, state.offsets, state.type.dims));
    if (value.type() != state.type) {
      return InvalidArgument(checkpoint.path() + ": `" + state.global_name + "`: expected " +
                             state.type.ToString() + ", got: " + value.type().ToString());
    }
    MT_RETURN_IF_ERROR(session_->Write(states_.at(state.name).variable, value));
  }
  return OkStatus();
}

void Store::PublishCatalogue() {
  auto catalogue = std::make_shared<Catalogue>();
  catalogue->term = term();
  for (const auto& [name, update] : updates_) catalogue->updates.emplace(name, update.inputs);
  for (const auto& [name, state] : states_) catalogue->states.emplace(name, state.spec.type);
  catalogue_ = std::move(catalogue);
}

// A new version; only what changed is read anew.
Status Store::Publish(const std::vector<std::string>& changed) {
  auto newest = std::make_shared<StoreVersion>(*newest_);
  newest->term = term();
  newest->version = version_;
  for (const std::string& name : changed) {
    MT_ASSIGN_OR_RETURN(Tensor value, session_->ReadToHost(states_.at(name).variable));
    newest->values.insert_or_assign(name, std::move(value));
  }
  newest_ = std::move(newest);
  return OkStatus();
}

// --- pushes

Status Store::CheckPush(const Push& push) const {
  const PushRequest& r = push.request;
  if (r.term != term() || r.term == 0) return OtherTerm(r.term, term());
  if (!broken_.ok()) return broken_;
  std::vector<TensorType> types;
  if (!r.update.empty()) {
    const auto it = updates_.find(r.update);
    if (it == updates_.end()) {
      return FailedPrecondition("expected an update of this server, got: `" + r.update + "`");
    }
    types = it->second.inputs;
  }
  for (const std::string& name : r.names) {
    const auto it = states_.find(name);
    if (it == states_.end()) {
      return FailedPrecondition("expected states of this server, got: `" + name + "`");
    }
    types.push_back(it->second.spec.type);
  }
  bool fits = types.size() == push.values.size();
  for (size_t i = 0; fits && i < types.size(); ++i) fits = push.values[i].type() == types[i];
  if (!fits) {
    return InvalidArgument("push of `" + r.update + "`: expected its inputs, got: other tensors");
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (const int64_t bad = mesh::CountNotFinite(push.values[i]); bad > 0) {
      return OutOfRange("push of `" + r.update + "` from worker-" + std::to_string(r.id.worker) +
                        ": value " + std::to_string(i) + " of " + types[i].ToString() +
                        ": expected finite numbers, got: " + std::to_string(bad) +
                        " that are not; nothing was changed")
          .From(Origin::kNumbers);
    }
  }
  return OkStatus();
}

// Behind the others, without a sync.
Status Store::Log(const Push& push, int64_t version) {
  if (!logs()) return OkStatus();
  const PushRequest& r = push.request;
  std::vector<Bytes> payload;
  for (const Tensor& value : push.values) payload.push_back(value.bytes());
  const Status written =
      log_->Write(Encode(LogRecord(LoggedPush{version, r.id, r.settled, r.update, r.names})),
                  payload)
          .From(Origin::kOutput);
  if (written.ok()) {
    no_room_since_.reset();
    return written;
  }
  const Duration now = SystemClock().Monotonic();
  if (!no_room_since_) no_room_since_ = now;
  if (now - *no_room_since_ >= options_.no_room_timeout && broken_.ok()) broken_ = written;
  return written;
}

std::vector<Result<PushReply>> Store::Apply(std::span<const Push> pushes) {
  std::vector<Result<PushReply>> results;
  std::vector<size_t> accepted;  // logged, and new
  PushTable seen = seen_;        // as it will be
  int64_t version = version_;
  for (const Push& push : pushes) {
    const PushRequest& r = push.request;
    const Status checked = CheckPush(push);
    const PushTable::Verdict verdict = seen.Check(r.id);
    if (!checked.ok()) {
      results.push_back(checked);
    } else if (verdict == PushTable::Verdict::kStale) {
      results.push_back(FailedPrecondition("push of worker-" + std::to_string(r.id.worker) +
                                           ": incarnation " + std::to_string(r.id.incarnation) +
                                           " has ended"));
    } else if (verdict == PushTable::Verdict::kSeen) {
      results.push_back(PushReply{.version = version, .repeated_push = true});
    } else if (setup_->staleness_bound >= 0 && r.based_on >= 0 &&
               version - r.based_on > setup_->staleness_bound) {
      results.push_back(Aborted("push of worker-" + std::to_string(r.id.worker) +
                                ": expected values computed from one " + "of the last " +
                                std::to_string(setup_->staleness_bound) + " versions before " +
                                std::to_string(version) + ", got: " + std::to_string(r.based_on)));
    } else {
      if (const Status written = Log(push, version + 1); !written.ok()) {
        results.push_back(written);
        continue;
      }
      ++version;
      seen.Add(r.id, r.settled);
      accepted.push_back(results.size());
      results.push_back(PushReply{.version = version});
    }
  }
  if (accepted.empty()) return results;
  if (logs()) {
    if (const Status synced = log_->Sync().From(Origin::kOutput); !synced.ok()) {
      // Nobody knows what the disk holds now: nothing is acknowledged any more, repeated pushes
      // included.
      broken_ = synced;
      for (Result<PushReply>& result : results) {
        if (result.ok()) result = synced;
      }
      return results;
    }
  }
  std::vector<std::string> changed;
  Status applied;
  for (const size_t i : accepted) {
    applied = Run(pushes[i].request.update, pushes[i].request.names, pushes[i].values, &changed);
    if (!applied.ok()) break;
    version_ = results[i]->version;
  }
  seen_ = std::move(seen);
  if (applied.ok()) {
    std::sort(changed.begin(), changed.end());
    changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
    applied = Publish(changed);
  }
  if (!applied.ok()) {
    broken_ = Internal("a push that is in the log could not be applied: " + applied.message());
    for (Result<PushReply>& result : results) {
      if (result.ok()) result = broken_;
    }
    return results;
  }
  if (logs() && log_bytes() > options_.compact_log_bytes) {
    if (const Status compacted = Compact(); !compacted.ok()) {
      LogWarning("the push log could not be shortened",
                 {{"folder", options_.folder}, {"error", compacted.message()}});
    }
  }
  return results;
}

Status Store::Run(const std::string& update, const std::vector<std::string>& names,
                  std::span<const Tensor> values, std::vector<std::string>* changed) {
  size_t next = 0;
  if (!update.empty()) {
    const auto it = updates_.find(update);
    if (it == updates_.end() || values.size() < it->second.inputs.size()) {
      return InvalidArgument("expected an update of this server and its inputs, got: `" + update +
                             "`");
    }
    const LoadedUpdate& loaded = it->second;
    for (size_t i = 0; i < loaded.inputs.size(); ++i) {
      MT_RETURN_IF_ERROR(loaded.step->Feed(i, values[next++]));
    }
    MT_RETURN_IF_ERROR(loaded.step->Run());
    changed->insert(changed->end(), loaded.pulled.begin(), loaded.pulled.end());
  }
  for (const std::string& name : names) {
    const auto it = states_.find(name);
    if (it == states_.end() || next >= values.size()) {
      return InvalidArgument("expected a state of this server and its value, got: `" + name + "`");
    }
    MT_RETURN_IF_ERROR(session_->Write(it->second.variable, values[next++]));
    if (it->second.spec.pulled) changed->push_back(name);
  }
  return OkStatus();
}

Result<std::vector<Tensor>> Store::Read(const std::vector<std::string>& names) {
  if (!broken_.ok()) return broken_;
  std::vector<Tensor> values;
  for (const std::string& name : names) {
    const auto it = states_.find(name);
    if (it == states_.end()) {
      return NotFound("expected a state of this server, got: `" + name + "`");
    }
    MT_ASSIGN_OR_RETURN(Tensor value, session_->ReadToHost(it->second.variable));
    values.push_back(std::move(value));
  }
  return values;
}

void Store::Fence(int64_t term, std::span<const int64_t> incarnations) {
  if (term != this->term()) return;
  for (size_t w = 0; w < incarnations.size(); ++w) {
    seen_.End(static_cast<int32_t>(w), incarnations[w]);
  }
}

// --- checkpoints

Result<Cut> Store::MakeCut(const CutRequest& request) {
  if (request.term != term() || request.term == 0) {
    return OtherTerm(request.term, term());
  }
  if (!broken_.ok()) return broken_;
  Fence(request.term, request.incarnations);
  Cut cut{.options = *setup_, .step = request.step, .folder = request.folder, .version = version_};
  Base base{
      .term = term(), .version = version_, .seen = seen_.Entries(), .definitions = definitions_};
  base.checkpoint_step = request.step;
  base.checkpoint_folder = ToldFrom(request.folder);
  std::vector<Tensor> copies;
  for (const std::string& name : order_) {
    const State& state = states_.at(name);
    MT_ASSIGN_OR_RETURN(Tensor value, session_->ReadToHost(state.variable));
    if (state.spec.copy) {
      base.inline_states.push_back({name, state.spec.type});
      copies.push_back(value);
    }
    cut.states.emplace_back(state.spec, std::move(value));
  }
  if (!request.cuts_log) return cut;
  std::vector<Bytes> payload;
  for (const Tensor& copy : copies) payload.push_back(copy.bytes());
  MT_RETURN_IF_ERROR(BeginSegment(std::move(base), payload).From(Origin::kOutput));
  return cut;
}

Result<checkpoint::Index> WriteCut(const Cut& cut, const std::string& program_hash,
                                   const std::map<std::string, std::string>& metadata) {
  checkpoint::Snapshot snapshot;
  snapshot.step = cut.step;
  snapshot.program_hash = program_hash;
  snapshot.metadata = metadata;
  // So that a server that restarts does not take another run's checkpoint of the same step for its
  // own.
  snapshot.metadata[std::string(kTermKey)] = std::to_string(cut.options.term);
  std::map<std::string, size_t> places;
  for (const auto& [state, value] : cut.states) {
    if (!state.saved) continue;
    const auto [it, made] = places.emplace(state.global_name, snapshot.variables.size());
    if (made) snapshot.variables.push_back({state.global_name, state.global_type, "", {}});
    snapshot.variables[it->second].blocks.push_back({state.offsets, value});
  }
  return checkpoint::WritePart(cut.folder, snapshot, cut.options.server, cut.options.servers)
      .From(Origin::kOutput);
}

Status Store::Committed(const CommittedRequest& request) {
  if (request.term != term()) return OtherTerm(request.term, term());
  if (!logs() || request.step < 0) return OkStatus();
  if (log_checkpoint_step_ == request.step) return RemoveBefore(old_segments_.size());
  for (size_t i = old_segments_.size(); i > 0; --i) {
    if (old_segments_[i - 1].checkpoint_step == request.step) return RemoveBefore(i - 1);
  }
  return OkStatus();  // made short meanwhile
}

// --- the log

int64_t Store::log_bytes() const {
  int64_t bytes = log_ ? log_->bytes() : 0;
  for (const OldSegment& old : old_segments_) bytes += old.bytes;
  return bytes;
}

Status Store::BeginSegment(Base base, std::span<const Bytes> payload) {
  if (!logs()) return OkStatus();
  const Segment segment{segment_number_ + 1, SegmentPath(options_.folder, segment_number_ + 1)};
  auto writer = LogWriter::Create(segment.path);
  Status status = writer.status();
  const int64_t checkpoint_step = base.checkpoint_step;
  if (status.ok()) status = (*writer)->Write(Encode(LogRecord(std::move(base))), payload);
  if (status.ok()) status = (*writer)->Sync();
  if (!status.ok()) {
    (void)RemoveFile(segment.path);
    return status;
  }
  if (log_) {
    old_segments_.push_back({{segment_number_, log_->path()}, log_->bytes(), log_checkpoint_step_});
  }
  log_ = std::move(*writer);
  log_checkpoint_step_ = checkpoint_step;
  segment_number_ = segment.number;
  return OkStatus();
}

// Segments are removed oldest first: what is left after a crash still goes on without a gap.
Status Store::RemoveBefore(size_t segment) {
  while (segment-- > 0) {
    MT_RETURN_IF_ERROR(RemoveFile(old_segments_.front().segment.path));
    old_segments_.erase(old_segments_.begin());
  }
  return OkStatus();
}

Status Store::Compact() {
  Base base{
      .term = term(), .version = version_, .seen = seen_.Entries(), .definitions = definitions_};
  int64_t bytes = 0;
  for (const auto& [name, state] : states_) bytes += state.spec.type.num_bytes();
  if (2 * bytes > log_bytes()) return OkStatus();  // hardly shorter
  std::vector<Tensor> values;
  std::vector<Bytes> payload;
  for (const std::string& name : order_) {
    const State& state = states_.at(name);
    MT_ASSIGN_OR_RETURN(Tensor value, session_->ReadToHost(state.variable));
    base.inline_states.push_back({name, state.spec.type});
    values.push_back(std::move(value));
  }
  for (const Tensor& value : values) payload.push_back(value.bytes());
  MT_RETURN_IF_ERROR(BeginSegment(std::move(base), payload));
  return RemoveBefore(old_segments_.size());
}

}  // namespace meshtrain::parameter
