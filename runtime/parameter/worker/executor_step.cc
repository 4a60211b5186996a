// One step, from its request to its answer: its arguments, the computation, the end.
#include <algorithm>

#include "runtime/data/cursor.h"
#include "runtime/parameter/worker/executor_impl.h"

namespace meshtrain::parameter {
namespace {

constexpr Duration kDataTimeout = std::chrono::minutes(5);

Duration UntilServers(const RunRequest& request) {
  return SystemClock().Monotonic() + std::chrono::milliseconds(request.server_wait_ms);
}

Status Stopped() { return Cancelled("the step was stopped"); }

}  // namespace

Executor::Impl::RunPtr Executor::Impl::TakeReturned(const RunRequest& request) {
  const auto ended = returned_.lower_bound(request.oldest_step);
  for (auto it = returned_.begin(); it != ended; it = returned_.erase(it)) {
    seqs_.erase(it->second->seq);
  }
  const auto node = returned_.extract(request.step);
  return node.empty() ? nullptr : node.mapped();
}

void Executor::Impl::Begin(const RunPtr& run) {
  const RunRequest& request = run->request;
  int64_t incarnation = 0;
  bool ours = false;
  RunPtr before;
  {
    MutexLock lock(mutex_);
    incarnation = incarnation_;
    ours = request.term == term_ && request.incarnation == incarnation_;
    if (ours) {
      runs_.insert(run);
      before = TakeReturned(request);
    }
  }
  if (!ours) {
    return Abandon(*run, FailedPrecondition("expected incarnation " + std::to_string(incarnation) +
                                            ", got: " + std::to_string(request.incarnation)));
  }
  run->until = UntilServers(request);
  run->based_on.assign(peers_.size(), -1);
  run->reply.versions.assign(peers_.size(), -1);
  if (before != nullptr) {
    // Its batch, and its number. What it may still hear of its pushes, it passes over.
    run->function = before->function;
    run->inputs = std::move(before->inputs);
    run->examples = std::move(before->examples);
    run->seq = before->seq;
    std::set<size_t> open;
    {
      MutexLock lock(before->mutex);
      open = before->open;
    }
    {
      MutexLock lock(run->mutex);
      run->open = std::move(open);
    }
    return Compute(run);
  }
  const Status gathered = Gather(*run);
  if (stop_.stop_requested()) return Abandon(*run, Stopped());
  if (!gathered.ok()) return Finish(*run, gathered);
  if (!run->function->spec.pushes.empty()) {
    run->seq = next_seq_++;
    MutexLock lock(mutex_);
    seqs_.insert(run->seq);
  }
  {
    MutexLock lock(run->mutex);
    for (size_t i = 0; i < run->function->spec.pushes.size(); ++i) run->open.insert(i);
  }
  Compute(run);
}

// Arguments to input tensors, and the function that takes them.
Status Executor::Impl::Gather(StepRun& run) {
  const RunRequest& request = run.request;
  std::vector<Tensor> sent = std::move(run.inputs);
  run.inputs.clear();
  size_t next = 0;
  for (const RunArgument& argument : request.arguments) {
    if (argument.kind == RunArgument::Kind::kTensor) {
      if (next >= sent.size()) {
        return InvalidArgument("expected a tensor for each argument, got: fewer");
      }
      run.inputs.push_back(std::move(sent[next++]));
      continue;
    }
    if (argument.entry < 0 || argument.entry >= static_cast<int64_t>(loaded_.size())) {
      return InvalidArgument("expected an entry of this worker as argument, got: " +
                             std::to_string(argument.entry));
    }
    Loaded& entry = loaded_[argument.entry];
    if (auto* value = std::get_if<Tensor>(&entry)) {
      run.inputs.push_back(*value);
    } else if (auto* pipeline = std::get_if<std::unique_ptr<data::Pipeline>>(&entry)) {
      MT_ASSIGN_OR_RETURN(data::Batch batch, NextBatch(**pipeline));
      for (Tensor& component : batch.components) run.inputs.push_back(std::move(component));
      run.examples[argument.entry] = std::move(batch.elements);
      run.reply.cursors.push_back({argument.entry, (*pipeline)->cursor().ToString()});
    } else {
      return InvalidArgument("expected a dataset or a value as argument, got: a function");
    }
  }
  std::string wanted;
  for (const int64_t id : request.functions) {
    const bool is_function = id >= 0 && id < static_cast<int64_t>(loaded_.size()) &&
                             std::holds_alternative<std::unique_ptr<Function>>(loaded_[id]);
    if (!is_function) {
      return InvalidArgument("expected a function of this worker, got: " + std::to_string(id));
    }
    const Function& function = *std::get<std::unique_ptr<Function>>(loaded_[id]);
    bool fits = function.inputs.size() == run.inputs.size();
    for (size_t i = 0; fits && i < run.inputs.size(); ++i) {
      fits = function.inputs[i] == run.inputs[i].type();
    }
    if (fits) {
      run.function = &function;
      return OkStatus();
    }
    for (const TensorType& type : function.inputs) {
      wanted += (wanted.empty() ? "" : ", ") + type.ToString();
    }
  }
  std::string got;
  for (const Tensor& input : run.inputs) got += (got.empty() ? "" : ", ") + input.type().ToString();
  return InvalidArgument("expected arguments of types " + wanted + ", got: " + got);
}

// At the end of a pass the next one begins.
Result<data::Batch> Executor::Impl::NextBatch(data::Pipeline& pipeline) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto next = pipeline.Next(stop_, kDataTimeout);
    MT_RETURN_IF_ERROR(next.status());
    if (next->has_value()) return std::move(**next);
  }
  return InvalidArgument("dataset: expected at least one batch in a pass, got: none")
      .From(Origin::kInput);
}

void Executor::Impl::Compute(const RunPtr& run) {
  Status status = Pull(*run);
  if (stop_.stop_requested()) return Abandon(*run, Stopped());
  if (!status.ok()) {
    const bool away = IsAway(status.code()) || status.code() == StatusCode::kFailedPrecondition;
    return Finish(*run, status, away ? RunReply::Cause::kServerAway : RunReply::Cause::kStep,
                  run->reply.server);
  }
  status = RunStep(*run);
  if (stop_.stop_requested()) return Abandon(*run, Stopped());
  if (!status.ok()) return Finish(*run, status);
  std::vector<size_t> sends;
  {
    MutexLock lock(run->mutex);
    // Others' pushes are not waited for anew.
    if (!run->stale) run->until = UntilServers(run->request);
    run->stale = false;
    sends.assign(run->open.begin(), run->open.end());
    run->sent.insert(sends.begin(), sends.end());
  }
  if (sends.empty()) return Finish(*run, OkStatus());
  for (const size_t push : sends) Send(run, push);
}

// Errors: kAborted, a bad step; of Origin::kInput where its data is not finite, which then has its
// file and its example in the message.
Status Executor::Impl::CheckFinite(const StepRun& run, const std::string& what,
                                   const Tensor& value) {
  const int64_t bad = mesh::CountNotFinite(value);
  if (bad == 0) return OkStatus();
  const int64_t all = value.type().num_elements();
  const auto first = run.function->step->FirstNotFinite();
  Status input;
  for (const auto& [entry, examples] : run.examples) {
    if (!input.ok()) break;
    input = std::get<std::unique_ptr<data::Pipeline>>(loaded_[static_cast<size_t>(entry)])
                ->CheckFinite(examples);
  }
  return Aborted("step " + std::to_string(run.request.step) + ": " + what +
                 ": expected finite numbers, got: " +
                 (all == 1 ? std::to_string(value.Item())
                           : std::to_string(bad) + " of " + std::to_string(all) + " that are not") +
                 "; first not finite: " +
                 (first.ok() ? *first : "unknown (" + first.status().message() + ")") +
                 "; nothing was pushed" + (input.ok() ? "" : "; " + input.message()))
      .From(input.origin().value_or(Origin::kNumbers));
}

Status Executor::Impl::RunStep(StepRun& run) {
  const Function& function = *run.function;
  const Program& program = function.spec.program;
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    MT_RETURN_IF_ERROR(function.step->Feed(i, run.inputs[i]));
  }
  MT_RETURN_IF_ERROR(function.step->Run());
  run.outputs.clear();
  run.reply.outputs.clear();
  for (int32_t i = 0; i < function.spec.outputs; ++i) {
    MT_ASSIGN_OR_RETURN(Tensor value, function.step->Fetch(static_cast<size_t>(i)));
    const std::string& name = program.outputs[i].name;
    const auto& finite = function.spec.finite;
    if (std::find(finite.begin(), finite.end(), name) != finite.end()) {
      MT_RETURN_IF_ERROR(CheckFinite(run, "output `" + name + "`", value));
    }
    run.reply.outputs.push_back({name, value.type()});
    run.outputs.push_back(std::move(value));
  }
  // Before anything is pushed to any server, so that a bad step is pushed to none.
  std::vector<Tensor> pushed(program.outputs.size());
  for (size_t i = static_cast<size_t>(function.spec.outputs); i < program.outputs.size(); ++i) {
    MT_ASSIGN_OR_RETURN(pushed[i], function.step->Fetch(i));
    MT_RETURN_IF_ERROR(CheckFinite(run, "`" + program.outputs[i].name + "`", pushed[i]));
  }
  MutexLock lock(run.mutex);
  run.pushed = std::move(pushed);
  return OkStatus();
}

bool Executor::Impl::End(StepRun& run, bool returned) {
  {
    MutexLock lock(run.mutex);
    if (run.finished) return false;
    run.finished = true;
  }
  MutexLock lock(mutex_);
  const auto it =
      std::find_if(runs_.begin(), runs_.end(), [&](const RunPtr& r) { return r.get() == &run; });
  const bool ours = run.request.incarnation == incarnation_ && it != runs_.end();
  if (ours && returned) {
    returned_[run.request.step] = *it;
  } else if (ours) {
    seqs_.erase(run.seq);
  }
  if (it != runs_.end()) runs_.erase(it);
  return true;
}

void Executor::Impl::Abandon(StepRun& run, const Status& why) {
  if (End(run, /*returned=*/false)) run.done(why, {});
}

void Executor::Impl::Finish(StepRun& run, const Status& status, RunReply::Cause cause,
                            int32_t server) {
  if (!End(run, cause == RunReply::Cause::kServerAway)) return;
  run.reply.status = status;
  run.reply.cause = cause;
  run.reply.server = server;
  if (!status.ok()) {
    run.reply.outputs.clear();
    run.outputs.clear();
  }
  run.done(std::move(run.reply), std::move(run.outputs));
}

}  // namespace meshtrain::parameter
