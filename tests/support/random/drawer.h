// The state of a program being drawn, and how calls of each op are drawn. Private to
// tests/support/random_*.cc.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "tests/support/random/program.h"

namespace meshtrain::testing::random {

using mesh::Dims;
using mesh::DType;
using mesh::TensorType;
using program::Attrs;
using program::OpDef;
using program::Value;

// Scatters the bits of a seed (splitmix64).
uint64_t Mixed(uint64_t x);

// One op, not recorded yet.
struct Call {
  std::vector<Value> operands;
  Attrs attrs;
};

class Drawer {
 public:
  Drawer(uint64_t seed, const DrawOptions& options);

  // The next op to try: one of `kinds`.
  const OpDef& NextKind(const std::vector<const OpDef*>& kinds);
  // Records one op of the row; false when no attempt gave a result that may be used.
  bool TryOp(const OpDef& def);
  // A sum, ops that read it, and sums of what they give: a layout may leave the first one pending
  // for some of its readers and not for others.
  void TryReaders();
  // A sum over a dimension that is split, one op of one operand that reads it, and the sum of
  // that. Where nothing else asks for them whole, they stay pending as far as the rules let them.
  void TryPendingWay();
  // A function that records several ops (composed.cc).
  void TryComposed();
  // A value less the mean of each of its rows or columns, as a normalisation begins: what chains
  // fold. Of a square sometimes less the means of its rows in a row, which no loop over rows can
  // have before its end.
  void TryMeans();
  // The gradient of some number of the program by some of its inputs and variables.
  void TryGradient();
  void AssignSome();
  Result<program::Program> Finish();

  const DrawOptions& options() const { return options_; }
  program::Builder& builder() { return builder_; }

  // --- chance
  size_t Pick(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  bool Chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }
  template <typename T>
  const T& OneOf(const std::vector<T>& of) {
    return of[Pick(of.size())];
  }
  // A number of the type, for attributes.
  double NumberOf(DType dtype);
  DType AnyDType();
  DType Half() { return Chance(0.5) ? DType::kBF16 : DType::kF16; }
  DType FloatDType() {
    if (Chance(of_16_bits_)) return Half();
    return Chance(0.75) ? DType::kF32 : DType::kF64;
  }
  Dims SomeDims(int most_rank = 3);
  uint64_t Bits() { return random_(); }

  // --- values
  struct Known {
    Value value;
    double low = 0, high = 0;
  };
  // Nothing drawn later reads these.
  void Forget(std::span<const Known> values);
  const Array& ArrayOf(Value v) const { return arrays_[v.id()]; }
  // A usable value that `fits`, newer ones more often; none: nothing.
  std::optional<Known> Some(const std::function<bool(const Known&)>& fits);
  Value Any();
  // A value that `fits` the first wish, else a new one of that type, fed with numbers of a kind
  // (program.h).
  Value SomeOr(const std::function<bool(const Known&)>& fits, const TensorType& type,
               const std::string& numbers);
  // A second operand: of a's type, broadcast against it.
  Value Beside(Value a);
  Value Fresh(const TensorType& type, std::string numbers = "");
  bool Fits(const Dims& dims) const { return mesh::NumElements(dims) <= options_.most_elements; }

 private:
  bool TryCall(const OpDef& def, const Call& call);
  std::optional<Call> DrawCall(const OpDef& def, int attempt);
  // Interprets what was recorded since the last time. False: some op of it cannot be.
  bool Evaluate();
  void Use(Value v);
  bool IsUsable(const Array& a) const;
  std::string Name(const std::string& numbers);

  DrawOptions options_;
  std::mt19937_64 random_;
  uint64_t feed_;
  program::Builder builder_;
  std::vector<int64_t> sizes_;  // dimensions are drawn from few sizes, so that shapes meet
  // How often a type is one of 16 bits: seldom, or as in a network that computes in them.
  double of_16_bits_ = 0.1;
  // Many element-wise ops over one shape: what is fused into chains that read each other.
  bool chains_ = false;
  Dims chain_dims_;
  std::vector<const OpDef*> between_;       // give an operand's type back, and are in no chain
  std::vector<const OpDef*> turns_;         // make another type of an operand: cast, comparisons
  std::vector<const OpDef*> arithmetic_;    // of two operands, integers too
  std::vector<const OpDef*> reductions_;    // over a dimension: what layouts leave pending
  const OpDef* product_ = nullptr;          // matmul
  std::vector<const OpDef*> windows_;       // where a shard needs more than its own, in most ways
  std::vector<const OpDef*> readers_;       // elementwise
  std::vector<const OpDef*> lone_readers_;  // of these, the ones of one operand
  std::vector<Array> arrays_;               // by value
  std::vector<Known> values_;               // what further ops may use
  std::optional<Known> focus_;              // what the next op reads, where it can
  std::vector<program::Variable> variables_;
  std::vector<Value> wanted_;  // outputs that must be there
  size_t evaluated_ = 0;       // ops
  int64_t work_ = 0;           // elements computed
  int names_ = 0;
};

// A call of an op that needs more than operands that fit each other; nullopt: this attempt found
// none. An op without a row of its own is called without attributes, on operands of one type that
// broadcast.
using Recipe = std::optional<Call> (*)(Drawer& d);
Recipe RecipeOf(const std::string& kind);
// Those of windows (windows.cc); null for other ops.
Recipe WindowRecipeOf(const std::string& kind);
// Those that take numbers of elements (gather.cc); null for other ops.
Recipe GatherRecipeOf(const std::string& kind);

}  // namespace meshtrain::testing::random
