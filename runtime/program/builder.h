// Records ops. Ordinary code over Values becomes a Program: operators and the functions of ops.h
// append to the builder that their operands belong to, or to the current one of this thread.
//
//   Builder b("step");
//   Builder::Scope scope(b);
//   Value x = b.Input("x", {DType::kF32, {8, 4}});
//   b.Output("loss", ReduceMean(x * 2.0));
//   MT_ASSIGN_OR_RETURN(Program p, b.Build());
//
// The first mistake (shapes that do not fit, values of two builders mixed) is kept with its source
// line; everything after it is ignored, and Build returns it. Not thread-safe: a builder belongs to
// the thread that records.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/program/program.h"

namespace meshtrain::program {

class Builder;

// A value of a program being recorded. Cheap to copy; valid while its builder lives.
class Value {
 public:
  Value() = default;  // no value
  Value(Builder* builder, ValueId id) : builder_(builder), id_(id) {}
  bool valid() const { return builder_ != nullptr; }
  Builder* builder() const { return builder_; }
  ValueId id() const { return id_; }
  TensorType type() const;  // f32[] after an error
  Dims dims() const { return type().dims; }
  DType dtype() const { return type().dtype; }
  int rank() const { return type().rank(); }

 private:
  Builder* builder_ = nullptr;
  ValueId id_ = kNoValue;
};

// A named piece of state that outlives the steps that read and assign it. Copies are the same
// variable. What stores its value is the session's business (runtime/execute).
class Variable {
 public:
  Variable() = default;
  Variable(std::string name, TensorType type, bool trainable = true)
      : info_(std::make_shared<const Info>(Info{std::move(name), std::move(type), trainable})) {}
  bool valid() const { return info_ != nullptr; }
  const std::string& name() const { return info_->name; }
  const TensorType& type() const { return info_->type; }
  const Dims& dims() const { return info_->type.dims; }
  bool trainable() const { return info_->trainable; }
  // Identity: equal for copies only.
  const void* key() const { return info_.get(); }
  friend bool operator==(const Variable& a, const Variable& b) { return a.info_ == b.info_; }

 private:
  struct Info {
    std::string name;
    TensorType type;
    bool trainable;
  };
  std::shared_ptr<const Info> info_;
};

// Anything an op takes: a Value, a Variable (its newest version), or a number (of the other
// operand's type). Remembers the line that made it, which is the user's.
class Operand {
 public:
  using Where = std::source_location;
  // Implicit: a call names what it takes.
  // NOLINTBEGIN(google-explicit-constructor)
  Operand(Value value, Where where = Where::current()) : value_(value), where_(where) {}
  Operand(const Variable& variable, Where where = Where::current())
      : variable_(&variable), where_(where) {}
  Operand(double number, Where where = Where::current())
      : number_(number), is_number_(true), where_(where) {}
  // NOLINTEND(google-explicit-constructor)

  const Value* value() const { return value_.valid() ? &value_ : nullptr; }
  const Variable* variable() const { return variable_; }
  bool is_number() const { return is_number_; }
  double number() const { return number_; }
  const Where& where() const { return where_; }

 private:
  Value value_;
  const Variable* variable_ = nullptr;
  double number_ = 0;
  bool is_number_ = false;
  Where where_;
};

class Builder {
 public:
  explicit Builder(std::string name);
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // Makes `builder` this thread's current one while it lives.
  class Scope {
   public:
    explicit Scope(Builder& builder);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Builder* previous_;
  };
  // Null outside every Scope.
  static Builder* Current();
  // The builder that a call with these operands records in: that of the first Value, else the
  // current one. Neither exists: the process dies naming the line, since an op outside every trace
  // has nowhere to report to.
  static Builder& Of(std::span<const Operand> operands);

  // Adds `name` to the path of the ops recorded while it lives.
  class NameScope {
   public:
    NameScope(Builder& builder, std::string_view name);
    ~NameScope();
    NameScope(const NameScope&) = delete;
    NameScope& operator=(const NameScope&) = delete;

   private:
    Builder& builder_;
    size_t length_;
  };

  // Ops recorded while it lives are of this line, whatever code records them: those of a manifest's
  // layer, of the line that declares it. Of several scopes the outermost counts.
  class LineScope {
   public:
    LineScope(Builder& builder, const SourceLine& line);
    ~LineScope();
    LineScope(const LineScope&) = delete;
    LineScope& operator=(const LineScope&) = delete;

   private:
    Builder& builder_;
    const bool outermost_;
  };

  // Variables of f32 that stand as operands are read as values of `dtype` while it lives; nullopt:
  // as they are. Of several scopes the innermost counts; Read gives the variable itself always.
  // `narrow_sums`: where devices hold parts of a gradient's sum, they are summed in `dtype`, else
  // in f32.
  class ReadingScope {
   public:
    ReadingScope(Builder& builder, std::optional<DType> dtype, bool narrow_sums = false);
    ~ReadingScope();
    ReadingScope(const ReadingScope&) = delete;
    ReadingScope& operator=(const ReadingScope&) = delete;

   private:
    Builder& builder_;
    const std::optional<DType> previous_;
    const bool previous_sums_;
  };

  Value Input(std::string name, TensorType type);
  void Output(std::string name, const Operand& value);
  // The newest version of the variable; its first use makes it a state of the program. Two
  // variables of one name are an error.
  Value Read(const Variable& variable);
  // From here on Read gives `value`, which must have the variable's type.
  void Assign(const Variable& variable, const Operand& value);

  // A number as a scalar of the given type.
  Value Constant(double number, DType dtype,
                 std::source_location where = std::source_location::current());
  // Appends an op of any kind and returns its results (four f32[] placeholders after an error).
  // The op's line is that of its first operand; an op without operands gives it in `where`.
  std::vector<Value> Append(std::string_view kind, std::vector<Operand> operands, Attrs attrs = {},
                            const std::source_location* where = nullptr);
  Value Append1(std::string_view kind, std::vector<Operand> operands, Attrs attrs = {},
                const std::source_location* where = nullptr);

  // d(loss)/d(wrt_i), by walking the ops recorded so far backwards; a zero tensor where the loss
  // does not depend on it. `loss` must be a scalar.
  std::vector<Value> Gradient(const Operand& loss, std::span<const Value> wrt);
  // With respect to the variables' newest versions. The loss and the gradients are watched.
  std::vector<Value> Gradient(const Operand& loss, std::span<const Variable> wrt);

  // Of the ops that `scope` gives a name for their paths below a part's (parts.h), gradients that
  // are recorded from here on keep no values but those that ops outside of the scope use too: all
  // ops of the scope are recorded again where the way back comes to the last of them (again.h).
  // Constants are not. `scope` must give the same for the same path; "": the values are kept.
  void ComputeAgain(std::function<std::string_view(std::string_view path)> scope);

  // No state changes in a step in which `value`, a gradient of `variable`, is not finite
  // (Program::watched). Of a variable the last such value is watched; integers, and values that no
  // operand has (zeros), are not.
  void WatchGradient(const Variable& variable, const Value& value);

  // `program` with the ops of which `chosen[i]` is true replaced by what their rows expand them to
  // (OpDef::expand). Inputs, states, outputs and watches stand where they stood. Errors: an
  // expansion's own.
  static Result<Program> Expanded(const Program& program, const std::vector<bool>& chosen);

  // Keeps the first error only.
  void Fail(Status error, const std::source_location& where = std::source_location::current());
  const Status& status() const { return status_; }
  const Program& program() const { return program_; }
  // What an op reads that takes this operand: a variable as the ReadingScope says, a number as a
  // constant of that type.
  Value Resolve(const Operand& operand, DType number_type = DType::kF32);
  DType TypeRead(const Variable& variable) const;
  // The variables touched so far, in the order of program().states.
  const std::vector<Variable>& variables() const { return variables_; }

  // The program with dead ops removed and checked, or the first error.
  Result<Program> Build();

 private:
  struct Version {
    size_t state;
    ValueId newest;
  };
  class Again;
  ValueId NewValue(TensorType type, int32_t op);
  SourceLine LineOf(const std::source_location& where) const;

  Program program_;
  Status status_;
  std::string path_;
  std::vector<Variable> variables_;
  std::map<const void*, Version> versions_;
  std::map<std::pair<DType, uint64_t>, ValueId>
      constants_;  // by the number's bits: NaN and -0.0 differ
  const SourceLine* forward_line_ =
      nullptr;  // while a gradient is made: the line of the op it belongs to
  const SourceLine* scope_line_ = nullptr;  // of the LineScope
  std::optional<DType> read_as_;            // of the ReadingScope
  bool narrow_sums_ = false;                // likewise
  std::function<std::string_view(std::string_view)> again_;

  friend class Value;
};

// What a watched loss is called.
inline constexpr std::string_view kWatchedLoss = "the loss";
// What a watched gradient is called: "the gradient of `w`".
std::string GradientOf(const Variable& variable);

// Builder::Gradient on the loss's own builder.
inline std::vector<Value> Gradient(const Value& loss, std::span<const Variable> variables) {
  return loss.builder()->Gradient(loss, variables);
}

}  // namespace meshtrain::program
