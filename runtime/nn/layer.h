// Layers record ops over values; their weights are made on the first call, when the input's
// dimensions are known, and are the same variables in every program traced after.
//
// A weight's path is the names of the layers being called, joined by dots: inside a model without a
// name, the layer `hidden_1` makes `hidden_1.kernel`. A model of one's own is a class with layers
// as members and a Call:
//
//   class TwoLayers : public nn::Layer {
//    public:
//     Value Call(const Value& x) override { return feature_2(feature(x)); }
//     nn::Dense feature{100, {.name = "feature", .activation = nn::ActivationKind::kRelu}};
//     nn::Dense feature_2{10, {.name = "feature_2"}};
//   };                                    // feature.kernel, feature.bias, feature_2.kernel,
//                                         feature_2.bias
//
// Errors go to the builder of the values. Not thread-safe; like a Builder, a layer belongs to the
// thread that records.
#pragma once

#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "runtime/nn/parameter.h"
#include "runtime/program/builder.h"

namespace meshtrain::nn {

// A text is written id by id: layers see one position of it, [1, 1, ...], and keep what they will
// need of it where later positions look back (Layer::Keep).
struct Writing {
  Value position;      // i64[1]: its place in the text, counted from 0
  int64_t length = 0;  // of the longest text
  // What layers keep, each [1, length, ...], added by Layer::Keep. Zeros before the first position.
  std::vector<program::Variable> kept = {};
};

// How layers behave in the trace at hand.
struct CallContext {
  bool training = false;
  int64_t seed = RandomSeed();  // of the program; keys dropout
  // An i64 scalar that counts training steps; dropout draws anew for each.
  std::optional<program::Variable> step;
  // bf16 or f16: layers compute in it. Their weights stay f32 and are cast where they are used, and
  // so are gradients on the way back (Micikevicius et al., "Mixed Precision Training", 2018). None:
  // in the type of their inputs, which their weights have too.
  std::optional<program::DType> compute;
  // Devices that hold parts of a weight's gradient sum them in `compute` too, and not in f32: half
  // as many bytes between them, and each part and sum rounded to 16 bits.
  bool narrow_sums = false;
  // One position of a text is traced, and not in training. Null: whole tensors are.
  Writing* writing = nullptr;

  // This thread's; outside every scope: not training.
  static const CallContext& Current();
};

// Makes a context that of this thread while it lives.
class ContextScope {
 public:
  explicit ContextScope(CallContext context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  CallContext previous_;
};

class Layer {
 public:
  using Where = std::source_location;
  // In what CallContext::compute says, or in f32 always: what adds up much of little. Its input is
  // cast before it then, and its result behind it.
  enum Computes : uint8_t { kAsTold, kInF32 };

  explicit Layer(std::string name = "", Computes computes = kAsTold)
      : name_(std::move(name)), computes_(computes) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  Value operator()(const Value& x, Where where = Where::current()) {
    return Run(std::span<const Value>(&x, 1), Gives::kOne, where).front();
  }
  // For layers of several inputs.
  Value operator()(std::span<const Value> inputs, Where where = Where::current()) {
    return Run(inputs, Gives::kOne, where).front();
  }
  // All that the layer gives, in the order of outputs(). Of a layer of several outputs the calls
  // above are an error.
  std::vector<Value> All(std::span<const Value> inputs, Where where = Where::current()) {
    return Run(inputs, Gives::kAll, where);
  }
  // What its outputs are called, in their order; at least one. Of a layer of one output, as most
  // are and as here, the name is "".
  virtual std::vector<std::string> outputs() const { return {""}; }

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }  // before the first call
  // "dense": what a container names it after where it has no name.
  virtual std::string_view kind() const { return "model"; }
  // Of sequences [N, T, ...]: what it gives for a position depends on what it is given for it and,
  // at most, for those before, which it keeps (Keep) where CallContext::writing says so. A
  // container says so of itself; its layers are asked each. Layers that do not are refused there.
  virtual bool by_position() const { return false; }
  // Its weights and those of the layers it has called, in the order in which they were made; empty
  // before the first call.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // Where a manifest declares the layer: the line of the ops that it records. Without one it is
  // that of the code.
  void set_line(program::SourceLine line) { line_ = std::move(line); }
  // The first error of a trace arose in this layer.
  bool failed() const { return failed_; }

 protected:
  Layer(Layer&&) = default;  // for containers that take layers by value, before the first call

  // Makes the weights (AddParameter). Called once, before the first Call, under the layer's name.
  virtual void Build(std::span<const TensorType> inputs) { (void)inputs; }
  // One of the two must be overridden.
  virtual Value Call(const Value& x);
  virtual Value CallMany(std::span<const Value> inputs);  // hands a single input to Call
  // Overridden by layers of several outputs, and then in the place of the two: a value for each of
  // outputs(), in their order. Here: what CallMany gives.
  virtual std::vector<Value> CallAll(std::span<const Value> inputs);

  // Of a type of 16 bits it is f32 where CallContext::compute is set.
  Parameter AddParameter(std::string_view name, TensorType type, Initializer initializer,
                         ParameterOptions options = {});
  const CallContext& context() const { return CallContext::Current(); }
  // Where CallContext::writing: [1, length, ...], `now` [1, 1, ...] in the place of this position
  // and what was kept before in the others. `name`: of what is kept, once in each layer.
  Value Keep(std::string_view name, const Value& now);
  // Gives the error to the builder, with the layer's path before it and the line that called the
  // layer.
  void Fail(Status error);

 private:
  struct Frame;
  enum class Gives : uint8_t { kOne, kAll };
  std::vector<Value> Run(std::span<const Value> inputs, Gives gives, const Where& where);
  static Frame*& Top();

  std::string name_;
  Computes computes_;
  std::string path_;  // once built
  bool built_ = false;
  bool failed_ = false;
  program::SourceLine line_;
  std::vector<Parameter> parameters_;
};

}  // namespace meshtrain::nn
