#include "runtime/execute/loaded_step.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/program/finite.h"

namespace meshtrain::execute {

Status LoadedStep::Feed(size_t input, const Tensor& value) {
  MT_CHECK(input < inputs_.size());
  const std::string& name = plan_.local().inputs[input].name;
  // A tensor fed before may have lent its buffers; write to buffers that are ours.
  MT_RETURN_IF_ERROR(session_->Fill(inputs_[input], value).At("input `" + name + "`"));
  for (size_t d = 0; d < devices_.size(); ++d) {
    devices_[d].inputs[input] = inputs_[input].buffers_[d].get();
  }
  fed_[input] = true;
  return OkStatus();
}

std::pair<int64_t, int64_t> LoadedStep::FedRows(size_t input) const {
  MT_CHECK(input < inputs_.size() && inputs_[input].type_.rank() > 0);
  const DTensor& to = inputs_[input];
  if (to.run_layout_.Canonical().IsReplicated()) return {0, to.type_.dims[0]};
  std::pair<int64_t, int64_t> rows = {to.type_.dims[0], 0};
  for (const int64_t rank : session_->LocalRanks(to.run_layout_.mesh())) {
    const Layout::Slice slice = to.run_layout_.SliceOf(rank, to.type_.dims);
    if (slice.sizes[0] == 0) continue;
    rows.first = std::min(rows.first, slice.offsets[0]);
    rows.second = std::max(rows.second, slice.offsets[0] + slice.sizes[0]);
  }
  return rows.first < rows.second ? rows : std::pair<int64_t, int64_t>(0, 0);
}

Status LoadedStep::Feed(size_t input, const DTensor& value) {
  MT_CHECK(input < inputs_.size());
  const std::string& name = plan_.local().inputs[input].name;
  if (!value.valid() || value.type_ != inputs_[input].type_) {
    return InvalidArgument("input `" + name + "`: expected a tensor of type " +
                           inputs_[input].type_.ToString() + ", got: " + value.type_.ToString());
  }
  MT_RETURN_IF_ERROR(session_->CheckMade(value).At("input `" + name + "`"));
  const Layout& want = inputs_[input].layout_;
  if (!(value.layout_.mesh() == want.mesh())) {
    return InvalidArgument("input `" + name + "`: expected a tensor on mesh " +
                           want.mesh().ToStringUnlike(value.layout_.mesh()) +
                           ", got: " + value.layout_.mesh().ToStringUnlike(want.mesh()));
  }
  if (!(value.layout_ == want)) {
    return InvalidArgument("input `" + name + "`: expected layout " + want.ToString() +
                           ", got: " + value.layout_.ToString());
  }
  lent_.resize(inputs_.size());
  lent_[input] = value;
  for (size_t d = 0; d < devices_.size(); ++d) devices_[d].inputs[input] = value.buffers_[d].get();
  fed_[input] = true;
  return OkStatus();
}

Status LoadedStep::UseVariables() {
  for (size_t i = 0; i < variables_.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const Session::Stored* stored, session_->Find(variables_[i]));
    const DTensor& value = stored->value;
    if (value.buffers_ == states_[i].buffers_) continue;
    if (!(value.layout_ == states_[i].layout_)) {
      return FailedPrecondition(
          "variable `" + variables_[i].name() + "`: expected layout " +
          states_[i].layout_.ToString() +
          ", for which the step was loaded, got: " + value.layout_.ToString());
    }
    states_[i] = value;
    for (size_t d = 0; d < devices_.size(); ++d) devices_[d].states[i] = value.buffers_[d].get();
  }
  return OkStatus();
}

Status LoadedStep::Run() {
  for (size_t i = 0; i < fed_.size(); ++i) {
    if (!fed_[i]) {
      return FailedPrecondition("input `" + plan_.local().inputs[i].name + "` was never fed");
    }
  }
  MT_RETURN_IF_ERROR(UseVariables());
  return RunOnThem();
}

Status LoadedStep::RunOnThem() {
  const Status run = executable_->Run(devices_);
  if (run.code() == StatusCode::kAborted) {
    const auto first = FirstNotFinite();
    return run.WithMessage(run.message() + "; first not finite: " +
                           (first.ok() ? *first : "unknown (" + first.status().message() + ")") +
                           "; no variable was changed");
  }
  MT_RETURN_IF_ERROR(run);
  ++runs_;
  return OkStatus();
}

Result<std::string> LoadedStep::FirstNotFinite() {
  const Mesh& mesh = plan_.partitioned.mesh;
  MT_ASSIGN_OR_RETURN(const program::FiniteCheck check,
                      program::WithFiniteChecks(program_, replica_ ? mesh.size() : 1));
  std::unique_ptr<LoadedStep> step;
  if (replica_) {
    MT_ASSIGN_OR_RETURN(step, session_->LoadReplica(check.program, mesh, variables_));
  } else {
    sharding::Given given;
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      given.inputs[program_.inputs[i].name] = plan_.partitioned.input_layouts[i];
    }
    MT_ASSIGN_OR_RETURN(step, session_->Load(check.program, mesh, variables_, std::move(given)));
  }
  for (size_t d = 0; d < devices_.size(); ++d) step->devices_[d].inputs = devices_[d].inputs;
  step->fed_.assign(step->fed_.size(), true);
  MT_RETURN_IF_ERROR(step->Run());
  std::vector<double> counts;
  for (size_t i = 0; i < check.places.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const double count, step->FetchNumber(i));
    counts.push_back(count);
  }
  std::string text = check.Explain(counts);
  if (text.empty()) return NotFound("every value is finite, but sums over the devices may not be");
  return text;
}

Result<Tensor> LoadedStep::Fetch(size_t output) const {
  MT_CHECK(output < outputs_.size());
  return session_->Gather(outputs_[output]);
}

Result<double> LoadedStep::FetchNumber(size_t output) const {
  MT_ASSIGN_OR_RETURN(const Tensor value, Fetch(output));
  if (value.type().num_elements() != 1) {
    return InvalidArgument("output `" + plan_.local().outputs[output].name +
                           "`: expected one element, got: " + value.type().ToString());
  }
  return value.Item();
}

Result<DTensor> LoadedStep::FetchOnMesh(size_t output) const {
  MT_CHECK(output < outputs_.size());
  return session_->Clone(outputs_[output]);
}

int64_t LoadedStep::CollectiveBytesSent(int64_t rank) const { return executable_->BytesSent(rank); }

int64_t LoadedStep::CollectiveBytesSent() const {
  int64_t bytes = 0;
  for (const int64_t rank : session_->LocalRanks(run_plan().partitioned.mesh)) {
    bytes += executable_->BytesSent(rank);
  }
  return bytes;
}

}  // namespace meshtrain::execute
