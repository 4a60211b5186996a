#include "tests/runtime/program/random_program.h"

#include <cstdlib>
#include <random>
#include <tuple>

#include "runtime/base/text.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::program {
namespace {

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed), builder_("drawn " + std::to_string(seed)) {}

  Program Make() {
    const Builder::Scope scope(builder_);
    values_ = {builder_.Input("x", {DType::kF32, {4, 6}}),
               builder_.Input("odd \"name\":\n\\ = %1", {DType::kF32, {6}}),
               builder_.Input("labels", {DType::kI64, {4}}),
               builder_.Input("mask-1/b.c", {DType::kBool, {4, 6}})};
    const Variable w("hidden_1.kernel", {DType::kF32, {6, 6}}), step("step", {DType::kI64, {}});
    values_.push_back(builder_.Read(w));
    const size_t count = 10 + Pick(40);
    for (size_t i = 0; i < count; ++i) {
      if (Pick(3) == 0) {
        const Builder::NameScope name(builder_, Pick(2) == 0 ? "block" : "weird \"scope\"");
        values_.push_back(Step(step));
      } else {
        values_.push_back(Step(step));
      }
      if (values_.back().type() == w.type() && Pick(2) == 0) Assign(w, values_.back());
    }
    AssignAdd(step, 1.0);
    for (int i = 0; i < 3; ++i) {
      builder_.Output("out " + std::to_string(i), values_[Pick(values_.size())]);
    }
    builder_.Output("last", values_.back());
    return *builder_.Build();
  }

 private:
  size_t Pick(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  double Number() {
    static constexpr double kOdd[] = {0.0, -1.0, 1e-300, 3e38, 0.1, 1.0 / 3.0, 12345678.0};
    return Pick(2) == 0 ? kOdd[Pick(std::size(kOdd))] : std::normal_distribution<double>()(random_);
  }
  Value Any() { return values_[Pick(values_.size())]; }
  // A floating-point value of rank 1 or 2.
  Value Float() {
    for (;;) {
      const Value v = Any();
      if (v.dtype() == DType::kF32 && v.rank() >= 1 && v.rank() <= 2) return v;
    }
  }

  Value Step(const Variable& step) {
    const Value a = Float();
    switch (Pick(16)) {
      case 0:
        return a + Number();
      case 1:
        return Relu(a) * a;
      case 2:
        return Pick(2) == 0 ? Gelu(a, true) : Exp(a);
      case 3:
        // Outer products of small values only, so that sizes stay countable.
        return a.type().num_elements() > 100 ? Neg(a)
                                             : MatMul(Reshape(a, {-1, 1}), Reshape(a, {1, -1}));
      case 4:
        return Reshape(a, {-1});
      case 5:
        return a.rank() == 2 ? Transpose(a, {1, 0}) : ExpandDims(a, Pick(2) == 0 ? 0 : -1);
      case 6:
        return ReduceMean(a, {-1}, true);
      case 7:
        return ReduceMax(ExpandDims(a, 0), {1}, Pick(2) == 0) + Number();
      case 8:
        return Concat({a, a, a}, -1);
      case 9: {
        Dims starts(a.dims().size(), 0), sizes = a.dims();
        starts[0] = static_cast<int64_t>(Pick(a.dims()[0]));
        sizes[0] -= starts[0];
        return Slice(a, starts, sizes);
      }
      case 10:
        return Pad(a, Dims(a.dims().size(), 1), Dims(a.dims().size(), 0), Number());
      case 11:
        return Select(Less(a, Number()), a, Softmax(a));
      case 12:
        return Fill(a.dims(), Number()) -
               StatelessUniform(a.dims(), {static_cast<int64_t>(random_()), 7});
      case 13:
        return Dropout(a, 0.25, static_cast<int64_t>(random_()), step);
      case 14:
        return Relayout(
            a, std::vector<std::string>(a.dims().size(), Pick(2) == 0 ? "batch" : "unsharded"));
      default:
        return OneHot(ArgMax(a, 0), 3);
    }
  }

  std::mt19937_64 random_;
  Builder builder_;
  std::vector<Value> values_;
};

}  // namespace

Program RandomProgram(uint64_t seed) { return Generator(seed).Make(); }

uint64_t FirstSeed() {
  const char* text = std::getenv("MT_TEST_SEED");
  return text == nullptr ? 1 : static_cast<uint64_t>(ParseInt(text).value_or(1));
}

bool SameProgram(const Program& a, const Program& b) {
  const auto key = [](const Op& op) {
    return std::tie(op.kind, op.attrs, op.operands, op.results, op.path);
  };
  bool same = a.name == b.name && a.inputs == b.inputs && a.outputs == b.outputs &&
              a.values.size() == b.values.size() && a.ops.size() == b.ops.size() &&
              a.states.size() == b.states.size();
  for (size_t i = 0; same && i < a.values.size(); ++i) {
    same = a.values[i].type == b.values[i].type && a.values[i].op == b.values[i].op;
  }
  for (size_t i = 0; same && i < a.ops.size(); ++i) same = key(a.ops[i]) == key(b.ops[i]);
  for (size_t i = 0; same && i < a.states.size(); ++i) {
    same = a.states[i].name == b.states[i].name && a.states[i].entry == b.states[i].entry &&
           a.states[i].exit == b.states[i].exit;
  }
  return same;
}

}  // namespace meshtrain::program
