#include "runtime/nn/layer.h"

#include <algorithm>
#include <utility>

#include "runtime/base/text.h"
#include "runtime/nn/layout_map.h"

namespace meshtrain::nn {

using program::Builder;
using program::DType;

namespace {

CallContext& CurrentContext() {
  thread_local CallContext context;
  return context;
}

// Floats but f64 as `dtype`; other values as they are.
Value As(const Value& x, DType dtype) {
  const DType own = x.dtype();
  if (own == dtype || !mesh::IsFloat(own) || own == DType::kF64) return x;
  return program::Cast(x, dtype);
}

}  // namespace

ContextScope::ContextScope(CallContext context)
    : previous_(std::exchange(CurrentContext(), std::move(context))) {}
ContextScope::~ContextScope() { CurrentContext() = std::move(previous_); }
const CallContext& CallContext::Current() { return CurrentContext(); }

// The layers being called, innermost first.
struct Layer::Frame {
  Layer* layer;
  Frame* outer;
  Builder* builder;
  Where where;
  std::string path;
};

Layer::Frame*& Layer::Top() {
  thread_local Frame* top = nullptr;
  return top;
}

Value Layer::Call(const Value& x) {
  Fail(InvalidArgument("has no Call"));
  return x;
}

Value Layer::CallMany(std::span<const Value> inputs) {
  if (inputs.size() == 1) return Call(inputs[0]);
  Fail(InvalidArgument("takes one input, got: " + std::to_string(inputs.size())));
  return inputs[0];
}

std::vector<Value> Layer::CallAll(std::span<const Value> inputs) { return {CallMany(inputs)}; }

std::vector<Value> Layer::Run(std::span<const Value> inputs, Gives gives, const Where& where) {
  const std::vector<std::string> names = outputs();
  // What is given after an error stands for nothing.
  const auto filling = [&] {
    return std::vector<Value>(gives == Gives::kOne ? 1 : names.size(),
                              inputs.empty() ? Value() : inputs[0]);
  };
  Builder* builder = inputs.empty() ? Builder::Current() : inputs[0].builder();
  // After an error nothing is recorded, and a weight made now would take a meaningless shape.
  if (inputs.empty() || builder == nullptr || !builder->status().ok()) {
    if (inputs.empty() && builder != nullptr) {
      builder->Fail(InvalidArgument("layer `" + name_ + "` was called without an input"), where);
    }
    return filling();
  }
  failed_ = false;
  Frame*& top = Top();
  Frame frame{this, top, builder, where, top != nullptr ? top->path : std::string()};
  if (!name_.empty()) {
    if (!frame.path.empty()) frame.path += '.';
    frame.path += name_;
  }
  if (built_) frame.path = path_;  // a layer that is shared keeps the path it got first
  std::optional<Builder::NameScope> scope;
  if (!name_.empty()) scope.emplace(*builder, name_);
  std::optional<Builder::LineScope> line;
  if (line_.line > 0) line.emplace(*builder, line_);
  top = &frame;
  if (context().writing != nullptr && !by_position()) {
    Fail(InvalidArgument("expected a layer that takes position by position, got: " +
                         std::string(kind())));
  }
  if (gives == Gives::kOne && names.size() != 1) {
    Fail(InvalidArgument("expected a call for all of its outputs, " + Join(names, ", ") +
                         " (nn::Layer::All), got: one for a single output"));
  }
  std::vector<Value> cast;
  std::optional<Builder::ReadingScope> reading;
  const auto compute = context().compute;
  if (compute) {
    const bool wide = computes_ == kInF32;
    for (const Value& input : inputs) {
      if (input.dtype() == DType::kF64) {
        Fail(InvalidArgument("computes in " + std::string(mesh::DTypeName(*compute)) +
                             ": expected inputs of f32, got: " + input.type().ToString()));
      }
      cast.push_back(As(input, wide ? DType::kF32 : *compute));
    }
    inputs = cast;
    reading.emplace(*builder, wide ? std::nullopt : compute, context().narrow_sums);
  }
  if (!built_ && builder->status().ok()) {
    path_ = frame.path;
    std::vector<TensorType> types;
    for (const Value& input : inputs) types.push_back(input.type());
    Build(types);
    built_ = builder->status().ok();
  }
  std::vector<Value> out = builder->status().ok() ? CallAll(inputs) : filling();
  if (builder->status().ok() && out.size() != names.size()) {
    Fail(InvalidArgument("expected a value for each of its outputs, " + Join(names, ", ") +
                         ", got: " + std::to_string(out.size())));
  }
  if (!builder->status().ok()) out = filling();
  for (Value& value : out) {
    if (compute && builder->status().ok()) value = As(value, *compute);
  }
  top = frame.outer;
  if (!builder->status().ok()) failed_ = true;
  if (frame.outer != nullptr) {
    std::vector<Parameter>& outer = frame.outer->layer->parameters_;
    for (const Parameter& parameter : parameters_) {
      if (std::find(outer.begin(), outer.end(), parameter) == outer.end()) {
        outer.push_back(parameter);
      }
    }
  }
  return out;
}

Parameter Layer::AddParameter(std::string_view name, TensorType type, Initializer initializer,
                              ParameterOptions options) {
  if (context().compute && mesh::IsHalf(type.dtype)) type.dtype = DType::kF32;
  const std::string path = path_.empty() ? std::string(name) : path_ + "." + std::string(name);
  if (!options.layout) {
    if (const LayoutMap* map = LayoutMap::Current()) {
      if (const auto rule = map->Find(path)) options.layout = map->specs(*rule);
    }
  }
  if (options.layout) {
    if (Status fits = CheckRank(*options.layout, path, type.rank()); !fits.ok()) Fail(fits);
  }
  parameters_.emplace_back(path, std::move(type), initializer, std::move(options));
  return parameters_.back();
}

Value Layer::Keep(std::string_view name, const Value& now) {
  Writing& writing = *context().writing;
  TensorType type = now.type();
  type.dims[1] = writing.length;
  const program::Variable& kept = writing.kept.emplace_back(path_ + "." + std::string(name), type,
                                                            /*trainable=*/false);
  program::Dims places(type.dims.size(), 1);
  const Value position = program::Reshape(writing.position, places);
  places[1] = writing.length;
  Builder& builder = *now.builder();
  const Value all =
      program::Select(program::Equal(program::Iota(places, 1), position), now, builder.Read(kept));
  builder.Assign(kept, all);
  return all;
}

void Layer::Fail(Status error) {
  const Frame* frame = Top();
  if (frame == nullptr) return;
  frame->builder->Fail(frame->path.empty() ? error : error.At(frame->path), frame->where);
}

}  // namespace meshtrain::nn
