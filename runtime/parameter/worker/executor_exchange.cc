// What a step exchanges with the servers: variables in, updates out.
#include <algorithm>

#include "runtime/parameter/worker/executor_impl.h"

namespace meshtrain::parameter {
namespace {

constexpr Duration kRetryAfter = std::chrono::milliseconds(100);

}  // namespace

Status Executor::Impl::Pull(StepRun& run) {
  TakeArrived();
  std::vector<int32_t> servers;
  for (const int32_t server : run.function->servers) {
    // What the coordinator knew of when it sent the step must be in the values; a worker's own last
    // push brought them.
    const std::optional<int64_t> held = run.pull_anew ? std::nullopt : HeldVersion(run, server);
    const auto& least = run.request.min_versions;
    if (held && static_cast<size_t>(server) < least.size() && *held >= least[server]) {
      run.based_on[server] = run.reply.versions[server] = *held;
    } else {
      servers.push_back(server);
    }
  }
  for (;;) {
    const Status status = PullFrom(run, servers);
    if (status.ok()) return WriteHeld(run);
    if (!IsAway(status.code())) return status;
    if (stop_.stop_requested()) return Cancelled("the step was stopped");
    if (SystemClock().Monotonic() + kRetryAfter >= run.until) return status;
    SystemClock().SleepFor(kRetryAfter, stop_);
    // Those that answered say "unchanged" now, or something newer.
  }
}

// To the host's copies, where they are newer.
void Executor::Impl::TakeArrived() {
  std::map<int32_t, Arrived> arrived;
  {
    MutexLock lock(mutex_);
    arrived.swap(arrived_);
  }
  for (auto& [server, a] : arrived) {
    for (size_t i = 0; i < a.parts.size(); ++i) {
      const PulledPart& part = a.parts[i];
      Held& held = held_.at(a.variables[i]);
      const auto version = held.versions.find(part.shard);
      if (version != held.versions.end() && version->second >= a.version) continue;
      const auto bytes = a.values[i].bytes();
      std::copy(bytes.begin(), bytes.end(),
                held.host.mutable_bytes().begin() + part.row * RowBytes(held.variable.type()));
      held.versions[part.shard] = a.version;
      held.written = false;
    }
  }
}

// The version of all that the step reads of a server, if it is one.
std::optional<int64_t> Executor::Impl::HeldVersion(const StepRun& run, int32_t server) const {
  const StepFunction& spec = run.function->spec;
  std::optional<int64_t> common;
  for (size_t i = 0; i < spec.pulls.size(); ++i) {
    const Held& held = held_.at(spec.program.states[i].name);
    for (const PulledPart& part : spec.pulls[i]) {
      if (part.server != server) continue;
      const auto version = held.versions.find(part.shard);
      if (version == held.versions.end() || (common && *common != version->second)) {
        return std::nullopt;
      }
      common = version->second;
    }
  }
  return common;
}

// What the step reads, from the host's copies to the session.
Status Executor::Impl::WriteHeld(const StepRun& run) {
  for (const program::State& state : run.function->spec.program.states) {
    Held& held = held_.at(state.name);
    if (held.written) continue;
    MT_RETURN_IF_ERROR(session_->Write(held.variable, held.host));
    held.written = true;
  }
  return OkStatus();
}

// Asks all of `servers` at once; returns the first error. Variables that came are in the host's
// copies.
Status Executor::Impl::PullFrom(StepRun& run, const std::vector<int32_t>& servers) {
  const StepFunction& spec = run.function->spec;
  struct Asked {
    PullRequest request;
    std::vector<std::pair<Held*, const PulledPart*>> parts;
    std::optional<Result<std::string>> answer;
    PullReply reply;
    std::function<void()> cancel;
  };
  std::vector<Asked> asked(servers.size());
  for (size_t s = 0; s < servers.size(); ++s) {
    Asked& a = asked[s];
    a.request.term = run.request.term;
    if (static_cast<size_t>(servers[s]) < run.request.min_versions.size()) {
      a.request.min_version = run.request.min_versions[servers[s]];
    }
    std::set<int64_t> have;
    for (size_t i = 0; i < spec.pulls.size(); ++i) {
      Held& held = held_.at(spec.program.states[i].name);
      for (const PulledPart& part : spec.pulls[i]) {
        if (part.server != servers[s]) continue;
        a.request.names.push_back(part.shard);
        a.parts.emplace_back(&held, &part);
        const auto version = held.versions.find(part.shard);
        have.insert(version == held.versions.end() ? -1 : version->second);
      }
    }
    if (have.size() == 1) a.request.have_version = *have.begin();
  }
  Mutex mutex;
  CondVar changed;
  size_t waiting = asked.size();
  for (size_t s = 0; s < servers.size(); ++s) {
    Asked& a = asked[s];
    const Land land = [&a,
                       &mutex](std::string_view head) -> Result<std::vector<std::span<std::byte>>> {
      MT_ASSIGN_OR_RETURN(a.reply, Decode<PullReply>(head));
      std::vector<std::span<std::byte>> to;
      if (a.reply.unchanged) return to;
      if (a.reply.types.size() != a.parts.size()) {
        return InvalidArgument("pull: expected each shard once, got: others");
      }
      MutexLock lock(mutex);  // parts of one variable may come from several servers
      for (size_t i = 0; i < a.parts.size(); ++i) {
        const auto& [held, part] = a.parts[i];
        if (a.reply.types[i] != part->type) {
          return InvalidArgument("pull: shard `" + part->shard + "`: expected " +
                                 part->type.ToString() + ", got: " + a.reply.types[i].ToString());
        }
        held->versions.erase(part->shard);  // until it is all here
        to.push_back(held->host.mutable_bytes().subspan(
            static_cast<size_t>(part->row * RowBytes(held->variable.type())),
            static_cast<size_t>(part->type.num_bytes())));
      }
      return to;
    };
    a.cancel = peers_[servers[s]]->Call(kServerPull, {Encode(a.request), {}}, options_.rpc_timeout,
                                        land, [&](Result<std::string> answer) {
                                          MutexLock lock(mutex);
                                          a.answer = std::move(answer);
                                          --waiting;
                                          changed.NotifyAll();
                                        });
  }
  // Each call ends by its own deadline; a stop only hurries it.
  const auto wait = [&](std::stop_token stop) {
    MutexLock lock(mutex);
    return changed.WaitFor(mutex, stop, std::chrono::seconds(5), [&] { return waiting == 0; });
  };
  while (!wait(stop_)) {
    if (!stop_.stop_requested()) continue;
    for (const Asked& a : asked) a.cancel();
    while (!wait({})) {
    }
  }
  Status first;
  for (size_t s = 0; s < servers.size(); ++s) {
    Asked& a = asked[s];
    if (!a.answer->ok()) {
      if (first.ok()) {
        first = a.answer->status().At("ps-" + std::to_string(servers[s]));
        run.reply.server = servers[s];
      }
      continue;
    }
    run.based_on[servers[s]] = run.reply.versions[servers[s]] = a.reply.version;
    if (a.reply.unchanged) continue;
    for (const auto& [held, part] : a.parts) {
      held->versions[part->shard] = a.reply.version;
      held->written = false;
      run.reply.pulled_bytes += part->type.num_bytes();
    }
  }
  return first;
}
void Executor::Impl::Send(const RunPtr& run, size_t push) {
  const ServerPush& to = run->function->spec.pushes[push];
  PushRequest request{run->request.term,
                      {worker_, run->request.incarnation, run->seq},
                      run->seq,
                      to.update,
                      {},
                      run->based_on[to.server]};
  Frame frame;
  {
    MutexLock lock(run->mutex);
    if (run->finished) return;
    for (const PushedPart& part : to.parts) {
      const int64_t rows = part.type.dims.empty() ? 1 : part.type.dims[0];
      frame.payload.push_back(RowsOf(run->pushed[part.output], part.row, rows));
      run->reply.pushed_bytes += part.type.num_bytes();
    }
  }
  {
    MutexLock lock(mutex_);
    if (!seqs_.empty()) request.settled = *seqs_.begin();
  }
  if (const auto wanted = run->function->wanted.find(to.server);
      wanted != run->function->wanted.end()) {
    for (const PulledPart* part : wanted->second) request.want.push_back(part->shard);
  }
  frame.head = Encode(request);
  auto values = std::make_shared<std::vector<Tensor>>();
  const Land land = [values](std::string_view head) -> Result<std::vector<std::span<std::byte>>> {
    MT_ASSIGN_OR_RETURN(const PushReply reply, Decode<PushReply>(head));
    values->clear();
    std::vector<std::span<std::byte>> to;
    for (const TensorType& type : reply.types) values->emplace_back(type);
    for (Tensor& value : *values) to.push_back(value.mutable_bytes());
    return to;
  };
  peers_[to.server]->Call(kServerPush, std::move(frame), options_.rpc_timeout, land,
                          [this, run, push, values](const Result<std::string>& answer) {
                            Sent(run, push, answer, std::move(*values));
                          });
}

// On a gRPC thread.
void Executor::Impl::Sent(const RunPtr& run, size_t push, const Result<std::string>& answer,
                          std::vector<Tensor> values) {
  const ServerPush& to = run->function->spec.pushes[push];
  Status status = answer.status().At("ps-" + std::to_string(to.server));
  bool all = false;
  bool again = false;
  {
    MutexLock lock(run->mutex);
    if (run->finished) return;
    run->sent.erase(push);
    if (answer.ok()) {
      const auto reply = Decode<PushReply>(*answer);
      if (reply.ok()) {
        run->open.erase(push);
        run->reply.versions[to.server] = reply->version;
        for (const Tensor& value : values) run->reply.pulled_bytes += value.type().num_bytes();
        if (!values.empty()) Keep(*run, to.server, reply->values_version, std::move(values));
      } else {
        status = reply.status();
      }
    } else if (status.code() == StatusCode::kAborted) {
      run->stale = true;
      status = OkStatus();
    }
    all = run->open.empty();
    again = run->stale && run->sent.empty();
    if (again) run->pull_anew = true;
  }
  if (all) return Finish(*run, OkStatus());
  const Duration now = SystemClock().Monotonic();
  if (!status.ok()) {
    const bool away = IsAway(status.code());
    if (!away || now + kRetryAfter >= run->until) {
      const bool lost = away || status.code() == StatusCode::kFailedPrecondition;
      return Finish(*run, status, lost ? RunReply::Cause::kServerAway : RunReply::Cause::kStep,
                    to.server);
    }
    {
      MutexLock lock(run->mutex);
      run->sent.insert(push);
    }
    return AddLater(kRetryAfter, [this, run, push] { Send(run, push); });
  }
  if (!again) return;
  if (now >= run->until) {
    return Finish(*run,
                  Unavailable("ps-" + std::to_string(to.server) +
                              ": others change its variables faster than " +
                              "the staleness bound lets this worker compute"),
                  RunReply::Cause::kServerAway, to.server);
  }
  Add([this, run](const Status& alive) {
    if (!alive.ok()) return Abandon(*run, alive);
    {
      MutexLock lock(run->mutex);
      if (run->finished) return;
    }
    Compute(run);
  });
}

// Variables that came with an answer, for the next step; under the run's lock.
void Executor::Impl::Keep(const StepRun& run, int32_t server, int64_t version,
                          std::vector<Tensor> values) {
  const StepFunction& spec = run.function->spec;
  Arrived next{.version = version, .values = std::move(values)};
  for (size_t i = 0; i < spec.pulls.size(); ++i) {
    for (const PulledPart& part : spec.pulls[i]) {
      if (part.server != server) continue;
      next.parts.push_back(part);
      next.variables.push_back(spec.program.states[i].name);
    }
  }
  bool fits = next.parts.size() == next.values.size();
  for (size_t i = 0; fits && i < next.parts.size(); ++i) {
    fits = next.parts[i].type == next.values[i].type();
  }
  if (!fits) return;
  MutexLock lock(mutex_);
  if (run.request.incarnation != incarnation_) return;
  Arrived& kept = arrived_[server];
  if (kept.version < version) kept = std::move(next);
}

}  // namespace meshtrain::parameter
