#include "runtime/execute/function.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/program/ops.h"

namespace meshtrain::execute {

Result<DVariable> DVariable::Create(Session& session, std::string name, const DTensor& initial,
                                    bool trainable) {
  if (!initial.valid()) {
    return InvalidArgument("variable `" + name +
                           "`: expected a tensor on a mesh, got: an empty one");
  }
  program::Variable variable(std::move(name), initial.type(), trainable);
  MT_RETURN_IF_ERROR(session.Declare(variable, initial.layout()));
  if (const Status written = session.Write(variable, initial); !written.ok()) {
    MT_RETURN_IF_ERROR(session.Forget(variable));
    return written;
  }
  return DVariable(&session, std::move(variable));
}

Result<DVariable> DVariable::Create(Session& session, std::string name, const Layout& layout,
                                    const std::function<Value()>& make, bool trainable) {
  MT_ASSIGN_OR_RETURN(const DTensor initial, CallWithLayout(session, layout, make));
  return Create(session, std::move(name), initial, trainable);
}

Result<MeanMetric> MeanMetric::Create(Session& session, const std::string& name, const Mesh& mesh) {
  MeanMetric metric;
  const Layout whole = Layout::Replicated(mesh, 0);
  const auto zero = [] { return program::Zeros({}, mesh::DType::kF64); };
  MT_ASSIGN_OR_RETURN(metric.total_, DVariable::Create(session, "metrics." + name + ".total", whole,
                                                       zero, /*trainable=*/false));
  MT_ASSIGN_OR_RETURN(metric.count_, DVariable::Create(session, "metrics." + name + ".count", whole,
                                                       zero, /*trainable=*/false));
  return metric;
}

void MeanMetric::Update(const Value& value, double weight) const {
  const Value wide = program::Cast(value, mesh::DType::kF64);
  program::AssignAdd(total_, weight == 1 ? wide : wide * weight);
  program::AssignAdd(count_, weight);
}

meshtrain::Result<double> MeanMetric::Result() const {
  MT_ASSIGN_OR_RETURN(const Tensor total, total_.ToHost());
  MT_ASSIGN_OR_RETURN(const Tensor count, count_.ToHost());
  return total.Item() / count.Item();
}

Status MeanMetric::Reset() const {
  MT_RETURN_IF_ERROR(total_.Assign(Tensor::Scalar(0.0)));
  return count_.Assign(Tensor::Scalar(0.0));
}

Function::Function(Session& session, std::string name, std::vector<std::string> inputs,
                   size_t arity, internal::AnyBody body)
    : session_(session),
      name_(std::move(name)),
      inputs_(std::move(inputs)),
      arity_(arity),
      body_(std::move(body)) {}

Function::~Function() = default;

const DTensor& Results::operator[](std::string_view name) const {
  const auto found = std::ranges::find(values_, name, [](const auto& v) { return v.first; });
  MT_CHECK(found != values_.end());
  return found->second;
}

const DTensor& Results::operator[](size_t place) const {
  MT_CHECK(place < values_.size());
  return values_[place].second;
}

Function& Function::WithOutputLayout(std::string name, Layout layout) {
  output_layouts_.insert_or_assign(std::move(name), std::move(layout));
  return *this;
}

Result<program::Program> Function::Trace(std::span<const TensorType> types,
                                         std::vector<program::Variable>* variables) const {
  if (types.size() != inputs_.size() || inputs_.size() != arity_) {
    return InvalidArgument("function " + name_ + ": it takes " + std::to_string(arity_) +
                           " values and names " + std::to_string(inputs_.size()) +
                           " inputs, got: " + std::to_string(types.size()));
  }
  program::Builder builder(name_);
  program::Builder::Scope scope(builder);
  std::vector<Value> values;
  for (size_t i = 0; i < types.size(); ++i) values.push_back(builder.Input(inputs_[i], types[i]));
  for (const auto& [name, value] : body_(values)) builder.Output(name, value);
  if (variables != nullptr) *variables = builder.variables();
  return builder.Build();
}

Result<LoadedStep*> Function::Prepare(std::span<const TensorType> types,
                                      std::span<const Layout> layouts) {
  if (layouts.size() != types.size()) {
    return InvalidArgument("function " + name_ + ": one layout per input is due");
  }
  const auto found = std::ranges::find_if(loaded_, [&](const Loaded& loaded) {
    return std::ranges::equal(loaded.types, types) && std::ranges::equal(loaded.layouts, layouts);
  });
  if (found != loaded_.end()) {
    std::rotate(found, found + 1, loaded_.end());
    LoadedStep* const step = loaded_.back().step.get();
    MT_RETURN_IF_ERROR(session_.Bring(step->variables()));
    if (step->UseVariables().ok()) return step;
    loaded_.pop_back();
  }

  std::vector<program::Variable> variables;
  MT_ASSIGN_OR_RETURN(const program::Program program, Trace(types, &variables));
  MT_RETURN_IF_ERROR(session_.Bring(variables));
  sharding::Given given;
  given.outputs = output_layouts_;
  given.outputs_stay = true;
  for (size_t i = 0; i < types.size(); ++i) given.inputs.insert_or_assign(inputs_[i], layouts[i]);
  Mesh mesh;
  if (!layouts.empty()) {
    mesh = layouts[0].mesh();
  } else if (!variables.empty()) {
    MT_ASSIGN_OR_RETURN(const Layout layout, session_.LayoutOf(variables[0]));
    mesh = layout.mesh();
  } else if (!output_layouts_.empty()) {
    mesh = output_layouts_.begin()->second.mesh();
  }
  // Before the next one takes its memory.
  if (loaded_.size() >= kMostLoaded) loaded_.erase(loaded_.begin());
  MT_ASSIGN_OR_RETURN(auto step, session_.Load(program, mesh, variables, std::move(given)));
  loaded_.push_back(
      {{types.begin(), types.end()}, {layouts.begin(), layouts.end()}, std::move(step)});
  return loaded_.back().step.get();
}

Result<Results> Function::Call(std::span<const DTensor> inputs) {
  std::vector<TensorType> types;
  std::vector<Layout> layouts;
  for (const DTensor& input : inputs) {
    if (!input.valid()) {
      return InvalidArgument("function " + name_ +
                             ": expected a tensor on a mesh, got: an empty one");
    }
    types.push_back(input.type());
    layouts.push_back(input.layout());
  }
  MT_ASSIGN_OR_RETURN(LoadedStep * step, Prepare(types, layouts));
  for (size_t i = 0; i < inputs.size(); ++i) MT_RETURN_IF_ERROR(step->Feed(i, inputs[i]));
  MT_RETURN_IF_ERROR(step->RunOnThem());  // its variables are those that Prepare has looked up
  Results results;
  for (size_t i = 0; i < step->num_outputs(); ++i) {
    MT_ASSIGN_OR_RETURN(DTensor output, step->FetchOnMesh(i));
    results.values_.emplace_back(step->plan().local().outputs[i].name, std::move(output));
  }
  return results;
}

Result<DTensor> CallWithLayout(Session& session, const Layout& layout,
                               const std::function<Value()>& make) {
  Function function(session, "call_with_layout", {}, [&]() -> Outputs {
    return {{"value", make()}};
  });
  function.WithOutputLayout("value", layout);
  MT_ASSIGN_OR_RETURN(const Results values, function.Call({}));
  return values[0];
}

Result<DTensor> RepackLocalTensor(Session& session, const Tensor& x, const Layout& layout,
                                  Uneven uneven) {
  MT_RETURN_IF_ERROR(layout.LocalShape(x.dims()).status().At("repack"));
  if (uneven == Uneven::kRefuse && !layout.IsEven(x.dims())) {
    for (int d = 0; d < layout.rank(); ++d) {
      if (x.dims()[d] % layout.NumShards(d) == 0) continue;
      return InvalidArgument("repack: dimension " + std::to_string(d) + " of " +
                             x.type().ToString() + ": expected a size that the " +
                             std::to_string(layout.NumShards(d)) + " shards of `" +
                             layout.specs()[d] + "` divide, got: " + std::to_string(x.dims()[d]) +
                             " (Uneven::kAllow permits unequal shards)");
    }
  }
  return session.CopyToMesh(x, layout);
}

}  // namespace meshtrain::execute
