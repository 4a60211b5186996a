#include "worker/runner.h"

#include "runtime/base/check.h"
#include "runtime/program/finite.h"

namespace meshtrain::worker {

using execute::LoadedStep;
using program::Program;

namespace {

// Feeds the batch's components, x and y, to the inputs of those names; a program may use only one of them.
Status FeedBatch(const Program& program, const train::Batch& batch, LoadedStep& step) {
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const size_t component = program.inputs[i].name == train::kInputName ? 0 : 1;
    MT_CHECK(component < batch.components.size());
    MT_RETURN_IF_ERROR(step.Feed(i, batch.components[component]));
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<SessionRunner>> SessionRunner::Create(execute::Session& session, const spec::Declared& declared,
                                                             Options options) {
  auto runner = std::unique_ptr<SessionRunner>(new SessionRunner(session, declared.mesh()));
  MT_CHECK(!options.types.empty() && options.types[0].rank() > 0);
  runner->full_size_ = options.types[0].dims[0];
  std::set<int64_t> sizes = options.train_sizes;
  sizes.insert(runner->full_size_);
  sizes.insert(options.eval_sizes.begin(), options.eval_sizes.end());
  std::map<int64_t, train::Programs> traced;
  for (const int64_t size : sizes) {
    std::vector<mesh::TensorType> types = options.types;
    for (mesh::TensorType& type : types) type.dims[0] = size;
    MT_ASSIGN_OR_RETURN(spec::Traced t, declared.Trace(types));
    if (size == runner->full_size_) {
      runner->layouts_.inputs = t.layouts.inputs;
      runner->layouts_.states = t.layouts.states;
      runner->programs_ = t.programs;
    }
    traced.emplace(size, std::move(t.programs));
  }
  runner->states_ = runner->programs_.States();
  for (const nn::Parameter& p : runner->states_) {
    const auto given = runner->layouts_.states.find(p.name());
    const mesh::Layout layout = given != runner->layouts_.states.end()
                                    ? given->second
                                    : mesh::Layout::Replicated(runner->mesh_, p.type().rank());
    MT_RETURN_IF_ERROR(session.Declare(p, layout));
    runner->by_name_.emplace(p.name(), p);
  }
  const auto load = [&](const Program& program, std::map<int64_t, Steps>& into, int64_t size) -> Status {
    MT_ASSIGN_OR_RETURN(const std::vector<program::Variable> variables, runner->VariablesOf(program));
    sharding::Given given;
    given.inputs = runner->layouts_.inputs;
    MT_ASSIGN_OR_RETURN(auto step, session.Load(program, runner->mesh_, variables, std::move(given)));
    into.emplace(size, Steps{program, std::move(step)});
    return OkStatus();
  };
  options.train_sizes.insert(runner->full_size_);
  for (const int64_t size : options.train_sizes) {
    MT_RETURN_IF_ERROR(load(traced.at(size).train_step, runner->train_, size));
  }
  for (const int64_t size : options.eval_sizes) {
    MT_RETURN_IF_ERROR(load(traced.at(size).eval_step, runner->eval_, size));
  }
  return runner;
}

Result<std::vector<program::Variable>> SessionRunner::VariablesOf(const Program& program) const {
  std::vector<program::Variable> variables;
  for (const program::State& s : program.states) {
    const auto it = by_name_.find(s.name);
    if (it == by_name_.end()) return Internal("program " + program.name + ": nothing holds its state `" + s.name + "`");
    variables.push_back(it->second);
  }
  return variables;
}

Status SessionRunner::Initialize() {
  MT_ASSIGN_OR_RETURN(const std::vector<program::Variable> variables, VariablesOf(programs_.init));
  MT_ASSIGN_OR_RETURN(auto step, session_.Load(programs_.init, mesh_, variables, {}));
  MT_RETURN_IF_ERROR(step->Run());
  for (size_t i = 0; i < initial_weights_.size(); ++i) {
    MT_RETURN_IF_ERROR(session_.Write(programs_.parameters[i], initial_weights_[i]));
  }
  return OkStatus();
}

std::vector<uint64_t> SessionRunner::plan_hashes() const {
  std::vector<uint64_t> hashes;
  for (const auto* steps : {&train_, &eval_}) {
    for (const auto& [size, s] : *steps) hashes.push_back(s.step->plan().hash);
  }
  return hashes;
}

const plan::Plan& SessionRunner::plan() const { return train_.at(full_size_).step->plan(); }

Result<train::Scalars> SessionRunner::Run(std::map<int64_t, Steps>& steps, const train::Batch& batch,
                                          const char* what) {
  const auto it = steps.find(batch.size);
  if (it == steps.end()) {
    return Internal(std::string(what) + ": no plan was made for a batch of " + std::to_string(batch.size));
  }
  LoadedStep& step = *it->second.step;
  const Program& program = it->second.program;
  MT_RETURN_IF_ERROR(FeedBatch(program, batch, step));
  const Status run = step.Run();
  if (!run.ok() && run.code() != StatusCode::kAborted) return run;  // kAborted: the loss is not finite, and says so
  train::Scalars scalars;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const double value, step.FetchNumber(i));
    scalars.emplace_back(program.outputs[i].name, value);
  }
  return scalars;
}

Result<train::Scalars> SessionRunner::TrainStep(const train::Batch& batch) { return Run(train_, batch, "training"); }
Result<train::Scalars> SessionRunner::EvalStep(const train::Batch& batch) { return Run(eval_, batch, "evaluation"); }

Status SessionRunner::Save(int64_t step) {
  if (!saver_) return OkStatus();
  MT_RETURN_IF_ERROR(saver_(step));
  last_saved_ = step;
  return OkStatus();
}

Result<std::string> SessionRunner::FirstNonFinite(const train::Batch& batch) {
  const auto it = train_.find(batch.size);
  if (it == train_.end()) return NotFound("no plan was made for a batch of " + std::to_string(batch.size));
  MT_ASSIGN_OR_RETURN(const program::FiniteCheck check, program::WithFiniteChecks(it->second.program));
  MT_ASSIGN_OR_RETURN(const std::vector<program::Variable> variables, VariablesOf(check.program));
  sharding::Given given;
  given.inputs = layouts_.inputs;
  MT_ASSIGN_OR_RETURN(auto step, session_.Load(check.program, mesh_, variables, std::move(given)));
  MT_RETURN_IF_ERROR(FeedBatch(check.program, batch, *step));
  MT_RETURN_IF_ERROR(step->Run());
  for (size_t i = 0; i < check.places.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const double flag, step->FetchNumber(i));
    if (flag != 0) return check.places[i];
  }
  return NotFound("every value of the step is finite");
}

}  // namespace meshtrain::worker
