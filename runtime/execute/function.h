// Ordinary code as a step: DVariable holds state, Function traces a callable once per set of input
// types and layouts and then runs the plan.
//
//   MT_ASSIGN_OR_RETURN(DVariable w, DVariable::Create(session, "w", layout, [] {
//     return program::StatelessUniform({784, 700}, {22, 23});
//   }));
//   Function step(session, "step", {"x"},
//                 [&](Value x) -> Outputs { return {{"y", MatMul(x, w)}}; });
//   MT_ASSIGN_OR_RETURN(const Results results, step(x));
//   MT_ASSIGN_OR_RETURN(const Tensor y, results["y"].Whole());
//
// Threads: as Session.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/execute/session.h"
#include "runtime/program/builder.h"

namespace meshtrain::execute {

using program::Value;
using Outputs = std::vector<std::pair<std::string, Value>>;

// A variable with a value in a session. Inside a Function it is read by use and changed by Assign,
// AssignAdd, AssignSub (program/ops.h); a read after an assignment sees the new value. Copies are
// the same variable.
class DVariable : public program::Variable {
 public:
  DVariable() = default;
  // In `initial`'s layout and with its value. Errors: kInvalidArgument for an empty tensor
  // or one of another session, kResourceExhausted. The members below are for a variable that Create
  // made.
  static Result<DVariable> Create(Session& session, std::string name, const DTensor& initial,
                                  bool trainable = true);
  // In `layout`, with the value of `make()`: DVariable(call_with_layout(make, layout)).
  static Result<DVariable> Create(Session& session, std::string name, const Layout& layout,
                                  const std::function<Value()>& make, bool trainable = true);

  Result<Layout> layout() const { return session_->LayoutOf(*this); }
  // Between steps.
  Result<DTensor> Read() const { return session_->Read(*this); }
  Result<Tensor> ToHost() const { return session_->ReadToHost(*this); }
  Status Assign(const Tensor& value) const { return session_->Write(*this, value); }
  Status Assign(const DTensor& value) const { return session_->Write(*this, value); }

 private:
  DVariable(Session* session, program::Variable variable)
      : program::Variable(std::move(variable)), session_(session) {}
  Session* session_ = nullptr;
};

namespace internal {
using AnyBody = std::function<Outputs(std::span<const Value>)>;

template <typename F, typename... Args, size_t... I>
AnyBody Adapt(F body, Outputs (F::*)(Args...) const, std::index_sequence<I...>) {
  return
      [body = std::move(body)]([[maybe_unused]] std::span<const Value> v) { return body(v[I]...); };
}
template <typename F, typename... Args>
constexpr size_t Arity(Outputs (F::*)(Args...) const) {
  return sizeof...(Args);
}
}  // namespace internal

// What a call of a Function gives: each output by its name, or by its place, as it lies on the
// mesh. A name or a place that the function does not have ends the program (MT_CHECK).
class Results {
 public:
  const DTensor& operator[](std::string_view name) const;
  const DTensor& operator[](size_t place) const;
  size_t size() const { return values_.size(); }

 private:
  friend class Function;
  std::vector<std::pair<std::string, DTensor>> values_;
};

class Function {
 public:
  // Steps that it holds at a time, for as many combinations of types and layouts: the last used.
  static constexpr size_t kMostLoaded = 16;

  // `body` takes one Value per name in `inputs` and returns Outputs. An output stays where its
  // producer leaves it (a pending sum is reduced), but for WithOutputLayout: DTensor::Whole gathers
  // it where somebody asks.
  template <typename F>
  Function(Session& session, std::string name, std::vector<std::string> inputs, F body)
      : Function(session, std::move(name), std::move(inputs), internal::Arity(&F::operator()),
                 internal::Adapt(body, &F::operator(),
                                 std::make_index_sequence<internal::Arity(&F::operator())>())) {}

  ~Function();
  Function(Function&&) = default;

  // Gives output `name` a layout; call before the first run.
  Function& WithOutputLayout(std::string name, Layout layout);

  // Runs the step. The first call with new types, layouts or meshes traces, shards, plans and
  // compiles. Errors: kInvalidArgument (another number of inputs, an empty one, the body's first
  // mistake with its line, what Session::Load refuses), kFailedPrecondition (a variable without a
  // value), and LoadedStep::Run's: kAborted for a bad step, which changes no variable.
  template <typename... T>
  Result<Results> operator()(const T&... inputs) {
    const std::array<DTensor, sizeof...(T)> list = {inputs...};
    return Call(list);
  }
  Result<Results> Call(std::span<const DTensor> inputs);

  // The step behind a call with these inputs (loaded_step.h), planned but not run: for its report,
  // or to feed it from the host. It lives until a call finds that a variable of it has no value any
  // more, or one in another layout, or until kMostLoaded other steps have been called or prepared
  // since it was; one that comes again is traced and compiled anew.
  Result<LoadedStep*> Prepare(std::span<const TensorType> types, std::span<const Layout> layouts);
  // What is recorded for these input types.
  Result<program::Program> Trace(std::span<const TensorType> types,
                                 std::vector<program::Variable>* variables) const;

 private:
  Function(Session& session, std::string name, std::vector<std::string> inputs, size_t arity,
           internal::AnyBody body);

  Session& session_;
  std::string name_;
  std::vector<std::string> inputs_;
  size_t arity_;
  internal::AnyBody body_;
  std::map<std::string, Layout> output_layouts_;
  // What was compiled for inputs of these types and layouts, meshes included; the last used last.
  struct Loaded {
    std::vector<TensorType> types;
    std::vector<Layout> layouts;
    std::unique_ptr<LoadedStep> step;
  };
  std::vector<Loaded> loaded_;
};

// The value of `make()`, computed in `layout`: no device holds more than its shard (DTensor's
// call_with_layout).
Result<DTensor> CallWithLayout(Session& session, const Layout& layout,
                               const std::function<Value()>& make);

// DTensor's fetch_layout.
inline const Layout& FetchLayout(const DTensor& value) { return value.layout(); }

// A metric of the steps since it was reset: the mean of the numbers that they gave.
//
//   MT_ASSIGN_OR_RETURN(MeanMetric loss, MeanMetric::Create(session, "loss", mesh));
//   loss.Update(batch_loss);                             // in a Function's body
//   MT_ASSIGN_OR_RETURN(const double mean, loss.Result());  // between steps
//   MT_RETURN_IF_ERROR(loss.Reset());
//
// Its sum and its count are f64 variables of the session, `metrics.NAME.total` and `.count`, so a
// bad step does not change them. Copies are the same metric.
class MeanMetric {
 public:
  static meshtrain::Result<MeanMetric> Create(Session& session, const std::string& name,
                                              const Mesh& mesh);
  // Records that the step adds `value`, a scalar of any type; `weight`: as so many numbers.
  void Update(const Value& value, double weight = 1) const;
  // NaN where there was no step since Reset.
  meshtrain::Result<double> Result() const;
  Status Reset() const;

 private:
  DVariable total_, count_;
};

// What to do with a batch that the axis does not divide.
enum class Uneven { kRefuse, kAllow };

// Splits `x` along every sharded dimension of `layout` and packs the pieces: what each worker of an
// input pipeline does with its batch. Errors: kInvalidArgument naming dimension, size and axis
// where a dimension does not divide and `uneven` refuses.
Result<DTensor> RepackLocalTensor(Session& session, const Tensor& x, const Layout& layout,
                                  Uneven uneven = Uneven::kRefuse);

}  // namespace meshtrain::execute
