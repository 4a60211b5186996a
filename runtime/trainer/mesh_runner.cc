#include "runtime/trainer/mesh_runner.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/execute/loaded_step.h"

namespace meshtrain::trainer {

using execute::LoadedStep;
using program::Program;

namespace {

// Feeds the batch's components, which are called `names`, to the inputs of those names.
Status FeedBatch(const Program& program, const std::vector<std::string>& names,
                 const train::Batch& batch, LoadedStep& step) {
  if (batch.components.size() != names.size()) {
    return InvalidArgument(program.name + ": expected batches of " + Join(names, ", ") +
                           ", got: " + std::to_string(batch.components.size()) + " components");
  }
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const auto at = std::find(names.begin(), names.end(), program.inputs[i].name);
    MT_CHECK(at != names.end());
    MT_RETURN_IF_ERROR(step.Feed(i, batch.components[at - names.begin()]));
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<MeshRunner>> MeshRunner::Create(execute::Session& session, mesh::Mesh mesh,
                                                       Trace trace, Options options) {
  MT_CHECK(!options.types.empty() && options.types[0].rank() > 0);
  auto runner = std::unique_ptr<MeshRunner>(
      new MeshRunner(session, std::move(mesh), std::move(trace), std::move(options)));
  const Options& o = runner->o_;
  runner->full_size_ = o.types[0].dims[0];
  MT_ASSIGN_OR_RETURN(TracedSteps full, runner->TraceSize(runner->full_size_));
  runner->layouts_ = std::move(full.layouts);
  runner->programs_ = std::move(full.programs);
  runner->states_ = runner->programs_.States();
  for (const nn::Parameter& p : runner->states_) runner->by_name_.emplace(p.name(), p);
  if (o.declare) {
    MT_RETURN_IF_ERROR(o.declare(runner->states_, runner->layouts_));
  } else {
    for (const nn::Parameter& p : runner->states_) {
      const auto given = runner->layouts_.states.find(p.name());
      const bool has = given != runner->layouts_.states.end();
      MT_RETURN_IF_ERROR(session.Declare(
          p, has ? given->second : mesh::Layout::Replicated(runner->mesh_, p.type().rank())));
    }
  }
  MT_RETURN_IF_ERROR(
      runner->Load(runner->programs_.train_step, runner->train_, runner->full_size_));
  return runner;
}

Result<TracedSteps> MeshRunner::TraceSize(int64_t size) const {
  std::vector<mesh::TensorType> types = o_.types;
  for (mesh::TensorType& type : types) type.dims[0] = size;
  return trace_(types);
}

Status MeshRunner::Load(const Program& program, BySize& into, int64_t size) {
  MT_ASSIGN_OR_RETURN(const std::vector<program::Variable> variables, VariablesOf(program));
  MT_ASSIGN_OR_RETURN(auto step,
                      session_.Load(program, mesh_, variables, {.inputs = layouts_.inputs},
                                    train::BytesPerPack(o_.packing, programs_)));
  into.emplace(size, Steps{program, std::move(step)});
  return OkStatus();
}

Status MeshRunner::PlanTraining(int64_t size) {
  if (train_.contains(size)) return OkStatus();
  MT_ASSIGN_OR_RETURN(const TracedSteps traced, TraceSize(size));
  return Load(traced.programs.train_step, train_, size);
}

Status MeshRunner::PlanEvaluation(int64_t size) {
  if (eval_.contains(size)) return OkStatus();
  if (size == full_size_) return Load(programs_.eval_step, eval_, size);
  MT_ASSIGN_OR_RETURN(const TracedSteps traced, TraceSize(size));
  return Load(traced.programs.eval_step, eval_, size);
}

Result<std::vector<program::Variable>> MeshRunner::VariablesOf(const Program& program) const {
  std::vector<program::Variable> variables;
  for (const program::State& s : program.states) {
    const auto it = by_name_.find(s.name);
    if (it == by_name_.end()) {
      return Internal("program " + program.name + ": nothing holds its state `" + s.name + "`");
    }
    variables.push_back(it->second);
  }
  return variables;
}

Status MeshRunner::Initialize() {
  MT_ASSIGN_OR_RETURN(const std::vector<program::Variable> variables, VariablesOf(programs_.init));
  MT_ASSIGN_OR_RETURN(auto step, session_.Load(programs_.init, mesh_, variables, {}));
  return step->Run();
}

int64_t MeshRunner::CollectiveBytesSent() const {
  int64_t bytes = 0;
  for (const BySize* steps : {&train_, &eval_}) {
    for (const auto& [size, loaded] : *steps) bytes += loaded.step->CollectiveBytesSent();
  }
  return bytes;
}

uint64_t MeshRunner::plan_hash(bool training, int64_t size) const {
  return (training ? train_ : eval_).at(size).step->plan().hash;
}

const plan::Plan& MeshRunner::plan() const { return train_.at(full_size_).step->plan(); }
int64_t MeshRunner::scratch_bytes() const { return train_.at(full_size_).step->scratch_bytes(); }

Result<train::BatchFigures> MeshRunner::Run(Steps& steps, const train::Batch& batch) {
  LoadedStep& step = *steps.step;
  const Program& program = steps.program;
  MT_RETURN_IF_ERROR(FeedBatch(program, programs_.components, batch, step));
  const Status run = step.Run();
  waited_ = step.waited();
  MT_RETURN_IF_ERROR(run);
  train::BatchFigures figures{.means = {}, .examples = batch.size};
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const mesh::Tensor value, step.Fetch(i));
    MT_RETURN_IF_ERROR(figures.Add(program.outputs[i].name, value, programs_.summed));
  }
  return figures;
}

Result<train::BatchFigures> MeshRunner::TrainStep(const train::Batch& batch) {
  MT_RETURN_IF_ERROR(PlanTraining(batch.size));
  return Run(train_.at(batch.size), batch);
}

Result<train::BatchFigures> MeshRunner::EvalStep(const train::Batch& batch) {
  MT_RETURN_IF_ERROR(PlanEvaluation(batch.size));
  return Run(eval_.at(batch.size), batch);
}

std::pair<int64_t, int64_t> MeshRunner::UsedOf(int64_t size) const {
  bool planned = false;
  int64_t first = size, end = 0;
  for (const BySize* steps : {&train_, &eval_}) {
    const auto of_size = steps->find(size);
    if (of_size == steps->end()) continue;
    planned = true;
    for (size_t i = 0; i < of_size->second.program.inputs.size(); ++i) {
      const auto rows = of_size->second.step->FedRows(i);
      if (rows.first == rows.second) continue;
      first = std::min(first, rows.first);
      end = std::max(end, rows.second);
    }
  }
  if (!planned) return {0, size};
  return {std::min(first, end), end};
}

Status MeshRunner::Save(const train::Position& position) {
  if (!saver_) return OkStatus();
  MT_RETURN_IF_ERROR(saver_(position));
  last_saved_ = position.step;
  return OkStatus();
}

}  // namespace meshtrain::trainer
