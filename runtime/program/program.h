// A program: a step over whole tensors, as a list of operations in single assignment form.
//
// Kept true (Validate checks it): every value has one producer, an op or an input or a state's
// entry; operands come before their uses; types are what the registry infers; names of inputs,
// states and outputs are unique. State has no order of its own: a state enters as one value and
// leaves as another, so reading after assigning is just a use of the newer value and nothing can
// move a read across a version.
//
// Text form (ToString / ParseProgram); a name that is not one word stands in quotes; worked
// example:
//   program double_it
//   input x: f32[8,4] = %0
//   state n: f32[] = %1
//   %2 = mul(%0, %0) : f32[8,4]
//   %3 = constant() {value=1.0} : f32[]
//   %4 = add(%1, %3) : f32[]
//   output y = %2
//   update n = %4
// Lines `watch "the loss" = %2` name Program::watched.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/shape.h"

namespace meshtrain::program {

using mesh::Dims;
using mesh::DType;
using mesh::TensorType;

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

// An attribute. Dtypes are written by name ("f32"), dimensions as integer lists.
using Attr =
    std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;

// Ordered by name, so that text and hash do not depend on how it was filled.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, Attr>> items)  // NOLINT: implicit
      : items_(items) {}

  bool Has(std::string_view name) const { return items_.find(name) != items_.end(); }
  void Set(std::string name, Attr value) {
    items_.insert_or_assign(std::move(name), std::move(value));
  }
  void Erase(std::string_view name);
  // The attribute, or `fallback` when it is absent. A present attribute of another type is a broken
  // invariant.
  bool Bool(std::string_view name, bool fallback = false) const;
  int64_t Int(std::string_view name, int64_t fallback = 0) const;
  double Double(std::string_view name, double fallback = 0) const;
  std::string Text(std::string_view name, std::string_view fallback = "") const;
  std::vector<int64_t> Ints(std::string_view name) const;
  std::vector<double> Doubles(std::string_view name) const;

  const std::map<std::string, Attr, std::less<>>& items() const { return items_; }
  friend bool operator==(const Attrs&, const Attrs&) = default;

 private:
  std::map<std::string, Attr, std::less<>> items_;
};

// As the text form writes it: true, 3, 3.0, "text", [1,2], d[1.0,2.0].
std::string AttrText(const Attr& attr);

// Where in the user's code an op was recorded. Not part of the hash.
struct SourceLine {
  std::string file;
  int line = 0;
  std::string ToString() const;  // "model.cc:12", "" when unknown
};

struct Op {
  std::string kind;  // a row of the registry
  Attrs attrs;
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  // The name scopes it was recorded in, "hidden_1"; keys random numbers that have no seed of their
  // own.
  std::string path;
  SourceLine where;
};

struct ValueInfo {
  TensorType type;
  int32_t op = -1;  // producer; -1 for inputs and entering states
};

struct Port {
  std::string name;
  ValueId value = kNoValue;
  friend bool operator==(const Port&, const Port&) = default;
};

// A variable as one step sees it.
struct State {
  std::string name;
  ValueId entry = kNoValue;  // its value when the step begins
  ValueId exit = kNoValue;   // when the step ends; == entry when the step only reads it
};

struct Program {
  std::string name;
  std::vector<ValueInfo> values;
  std::vector<Op> ops;
  std::vector<Port> inputs;
  std::vector<State> states;
  std::vector<Port> outputs;
  // What must be finite before any state changes: losses and gradients, named as messages name them
  // ("the gradient of `w`"). They only matter where they exist: nothing is computed for them alone.
  std::vector<Port> watched;

  const TensorType& type(ValueId v) const { return values[v].type; }
  std::string ToString() const;
  // For each value the indices of the ops that use it.
  std::vector<std::vector<int>> Uses() const;
};

// Errors: kInvalidArgument with the first broken rule, op and source line.
Status Validate(const Program& program);

// The inverse of ToString. Errors: kInvalidArgument with line and column.
Result<Program> ParseProgram(std::string_view text);

// A hash of what the program computes: of the outputs and updates by name, and of the ops behind
// them. Watches, value numbers, the order of independent ops, dead ops, the program's name and
// source lines do not matter; names of inputs, states and outputs, types, attributes do. A path
// counts only for ops whose result depends on it.
uint64_t HashProgram(const Program& program);

// Removes ops that no output or update needs and renumbers values. Inputs and states stay; watches
// of what was removed do not.
Program WithoutDeadOps(const Program& program);

// The wire form (proto/meshtrain/v1/program.proto), lossless. Errors: kInvalidArgument.
std::string SerializeProgram(const Program& program);
Result<Program> DeserializeProgram(std::string_view bytes);

}  // namespace meshtrain::program
