#include "runtime/program/builder.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "runtime/base/check.h"
#include "runtime/program/limits.h"
#include "runtime/program/registry.h"

namespace meshtrain::program {
namespace {

// The trace that ordinary code on this thread records into; set and restored by Scope only.
thread_local Builder* current_builder = nullptr;

constexpr int kPlaceholders = 4;

}  // namespace

TensorType Value::type() const {
  if (builder_ == nullptr || id_ == kNoValue) return {DType::kF32, {}};
  return builder_->program_.values[id_].type;
}

Builder::Builder(std::string name) { program_.name = std::move(name); }

Builder::Scope::Scope(Builder& builder) : previous_(current_builder) { current_builder = &builder; }
Builder::Scope::~Scope() { current_builder = previous_; }

Builder* Builder::Current() { return current_builder; }

Builder& Builder::Of(std::span<const Operand> operands) {
  for (const Operand& operand : operands) {
    if (operand.value() != nullptr) return *operand.value()->builder();
  }
  if (current_builder == nullptr) {
    const auto* where = operands.empty() ? nullptr : &operands[0].where();
    std::fprintf(stderr, "%s:%u: an op was recorded outside every trace\n",
                 where ? where->file_name() : "?", where ? where->line() : 0);
    std::abort();
  }
  return *current_builder;
}

Builder::NameScope::NameScope(Builder& builder, std::string_view name)
    : builder_(builder), length_(builder.path_.size()) {
  if (!builder_.path_.empty()) builder_.path_ += '.';
  builder_.path_ += name;
}
Builder::NameScope::~NameScope() { builder_.path_.resize(length_); }

Builder::LineScope::LineScope(Builder& builder, const SourceLine& line)
    : builder_(builder), outermost_(builder.scope_line_ == nullptr) {
  if (outermost_) builder_.scope_line_ = &line;
}
Builder::LineScope::~LineScope() {
  if (outermost_) builder_.scope_line_ = nullptr;
}

Builder::ReadingScope::ReadingScope(Builder& builder, std::optional<DType> dtype, bool narrow_sums)
    : builder_(builder),
      previous_(std::exchange(builder.read_as_, dtype)),
      previous_sums_(std::exchange(builder.narrow_sums_, narrow_sums)) {}
Builder::ReadingScope::~ReadingScope() {
  builder_.read_as_ = previous_;
  builder_.narrow_sums_ = previous_sums_;
}

DType Builder::TypeRead(const Variable& variable) const {
  const DType own = variable.type().dtype;
  return own == DType::kF32 ? read_as_.value_or(own) : own;
}

ValueId Builder::NewValue(TensorType type, int32_t op) {
  program_.values.push_back({std::move(type), op});
  return static_cast<ValueId>(program_.values.size()) - 1;
}

SourceLine Builder::LineOf(const std::source_location& where) const {
  if (forward_line_ != nullptr) return *forward_line_;
  return {where.file_name(), static_cast<int>(where.line())};
}

void Builder::Fail(Status error, const std::source_location& where) {
  if (!status_.ok() || error.ok()) return;
  status_ = error.At(LineOf(where).ToString());
}

Value Builder::Input(std::string name, TensorType type) {
  if (Status s = CheckLimits(type); !s.ok()) {
    Fail(s.At("input `" + name + "`"));
    return Value(this, kNoValue);
  }
  const ValueId id = NewValue(std::move(type), -1);
  program_.inputs.push_back({std::move(name), id});
  return Value(this, id);
}

void Builder::Output(std::string name, const Operand& value) {
  const Value v = Resolve(value, DType::kF32);
  if (!status_.ok()) return;
  program_.outputs.push_back({std::move(name), v.id()});
}

Value Builder::Read(const Variable& variable) {
  if (!variable.valid()) {
    Fail(InvalidArgument("expected a variable, got: an empty one"));
    return Value(this, kNoValue);
  }
  const auto it = versions_.find(variable.key());
  if (it != versions_.end()) return Value(this, it->second.newest);
  const ValueId id = NewValue(variable.type(), -1);
  versions_[variable.key()] = {program_.states.size(), id};
  program_.states.push_back({variable.name(), id, id});
  variables_.push_back(variable);
  return Value(this, id);
}

void Builder::Assign(const Variable& variable, const Operand& value) {
  Read(variable);
  const ReadingScope as_it_is(*this, std::nullopt);
  const Value v = Resolve(value, variable.valid() ? variable.type().dtype : DType::kF32);
  if (!status_.ok()) return;
  if (v.type() != variable.type()) {
    Fail(InvalidArgument("variable `" + variable.name() + "`: expected a value of type " +
                         variable.type().ToString() + ", got: " + v.type().ToString()),
         value.where());
    return;
  }
  Version& version = versions_.at(variable.key());
  version.newest = v.id();
  program_.states[version.state].exit = v.id();
}

Value Builder::Constant(double number, DType dtype, std::source_location where) {
  if (!status_.ok()) return Value(this, kNoValue);
  const auto [it, is_new] =
      constants_.try_emplace({dtype, std::bit_cast<uint64_t>(number)}, kNoValue);
  if (is_new) {
    const auto index = static_cast<int32_t>(program_.ops.size());
    it->second = NewValue({dtype, {}}, index);
    program_.ops.push_back(
        {"constant",
         {{"value", number}, {"dtype", std::string(mesh::DTypeName(dtype))}, {"dims", Dims{}}},
         {},
         {it->second},
         "",
         LineOf(where)});
  }
  return Value(this, it->second);
}

Value Builder::Resolve(const Operand& operand, DType number_type) {
  if (operand.is_number()) return Constant(operand.number(), number_type, operand.where());
  if (operand.variable() != nullptr) {
    const Value v = Read(*operand.variable());
    if (!status_.ok() || TypeRead(*operand.variable()) == v.dtype()) return v;
    Attrs attrs{{"dtype", std::string(mesh::DTypeName(*read_as_))}};
    if (narrow_sums_) attrs.Set("narrow_sums", true);
    return Append1("cast", {Operand(v, operand.where())}, std::move(attrs));
  }
  if (operand.value() == nullptr) {
    Fail(
        InvalidArgument(
            "expected a value, got: none (an op failed before, or a gradient that does not exist)"),
        operand.where());
    return Value(this, kNoValue);
  }
  if (operand.value()->builder() != this) {
    Fail(InvalidArgument("a value of another trace was used"), operand.where());
    return Value(this, kNoValue);
  }
  return *operand.value();
}

std::vector<Value> Builder::Append(std::string_view kind, std::vector<Operand> operands,
                                   Attrs attrs, const std::source_location* given_where) {
  const std::vector<Value> placeholders(kPlaceholders, Value(this, kNoValue));
  if (!status_.ok()) return placeholders;
  const std::source_location where = given_where != nullptr ? *given_where
                                     : operands.empty()     ? std::source_location::current()
                                                            : operands[0].where();
  const auto def = Registry::Standard().Get(kind);
  if (!def.ok()) {
    Fail(def.status(), where);
    return placeholders;
  }
  // A number takes the type of the first operand that is none; a condition does not count.
  DType number_type = DType::kF32;
  for (size_t i = kind == "select" ? 1 : 0; i < operands.size(); ++i) {
    const Operand& operand = operands[i];
    if (operand.is_number()) continue;
    number_type = operand.variable() != nullptr ? TypeRead(*operand.variable())
                  : operand.value() != nullptr  ? operand.value()->dtype()
                                                : DType::kF32;
    if (number_type != DType::kBool) break;
  }
  const bool in_layer = scope_line_ != nullptr && forward_line_ == nullptr;
  Op op{
      std::string(kind), std::move(attrs), {}, {}, path_, in_layer ? *scope_line_ : LineOf(where)};
  std::vector<TensorType> types;
  for (const Operand& operand : operands) {
    const Value v = Resolve(operand, number_type);
    if (!status_.ok()) return placeholders;
    op.operands.push_back(v.id());
    types.push_back(v.type());
  }
  const auto given = static_cast<int>(operands.size());
  if (given < (*def)->min_operands || ((*def)->max_operands >= 0 && given > (*def)->max_operands)) {
    Fail(InvalidArgument(std::string(kind) +
                         ": wrong number of operands, got: " + std::to_string(given)),
         where);
    return placeholders;
  }
  auto results = (*def)->infer({types, op.attrs});
  if (!results.ok()) {
    Fail(results.status().At(kind), where);
    return placeholders;
  }
  for (const TensorType& type : *results) {
    if (Status s = CheckLimits(type); !s.ok()) {
      Fail(s.At(kind), where);
      return placeholders;
    }
  }
  const auto index = static_cast<int32_t>(program_.ops.size());
  std::vector<Value> values;
  for (TensorType& type : *results) {
    op.results.push_back(NewValue(std::move(type), index));
    values.emplace_back(this, op.results.back());
  }
  program_.ops.push_back(std::move(op));
  return values;
}

Value Builder::Append1(std::string_view kind, std::vector<Operand> operands, Attrs attrs,
                       const std::source_location* where) {
  return Append(kind, std::move(operands), std::move(attrs), where)[0];
}

Result<Program> Builder::Build() {
  if (!status_.ok()) return status_;
  std::set<std::string_view> names;
  for (const State& s : program_.states) {
    if (names.insert(s.name).second) continue;
    return InvalidArgument("variable `" + s.name +
                           "`: another variable of this program has the same name");
  }
  Program program = WithoutDeadOps(program_);
  MT_RETURN_IF_ERROR(Validate(program));
  return program;
}

}  // namespace meshtrain::program
