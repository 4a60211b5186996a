#include "tests/support/random/drawer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runtime/base/check.h"

namespace meshtrain::testing::random {
namespace {

constexpr int kAttempts = 16;
constexpr int64_t kMostWork = 700'000;  // elements of one program
constexpr int kMostInputs = 9;
constexpr double kMostSize = 1e5;

}  // namespace

uint64_t Mixed(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

Drawer::Drawer(uint64_t seed, const DrawOptions& options)
    : options_(options),
      random_(Mixed(seed)),
      feed_(seed),
      builder_(Chance(0.8) ? "drawn " + std::to_string(seed) : "drawn \"by\nchance\"") {
  // Few sizes, so that shapes meet. One of them is often so large that loops have several blocks.
  for (int i = 0; i < 3; ++i)
    sizes_.push_back(static_cast<int64_t>(2 + Pick(Chance(0.3) ? 30 : 7)));
  if (Chance(0.45)) {
    const int64_t largest = Chance(0.25) ? options_.most_elements / 2 : 9000;
    sizes_.push_back(static_cast<int64_t>(200 + Pick(std::max<int64_t>(1, largest - 200))));
  }
  if (Chance(0.3)) sizes_.push_back(1);
  if (Chance(0.12)) of_16_bits_ = 0.7;
  chain_dims_ = SomeDims(2);
  chains_ = Chance(0.6);
  if (chains_ && Chance(0.6)) {
    const auto length = static_cast<int64_t>(1100 + Pick(2500));
    const auto row = static_cast<int64_t>(1 + Pick(40));
    const auto side = static_cast<int64_t>(std::sqrt(length));
    // In a square a row and a column look the same.
    chain_dims_ = Chance(0.25)   ? Dims{length}
                  : Chance(0.25) ? Dims{side, side}
                  : Chance(0.5)  ? Dims{row, length / row}
                                 : Dims{length / row, row};
    if (!Fits(chain_dims_)) chain_dims_ = {options_.most_elements};
  }
  for (const OpDef* def : program::Registry::Standard().All()) {
    if (!IsOfWholePrograms(*def) || def->elementwise || def->min_operands != 1) continue;
    const TensorType type{DType::kF32, {4, 3}};
    const auto results = def->infer({std::span(&type, 1), {}});
    if (results.ok() && (*results)[0] == type) between_.push_back(def);
  }
  for (const OpDef* def : program::Registry::Standard().All()) {
    if (!def->elementwise) continue;
    readers_.push_back(def);
    if (def->max_operands == 1) lone_readers_.push_back(def);
    const TensorType wholes[] = {{DType::kI32, {}}, {DType::kI32, {}}};
    if (const auto of_two = def->infer({wholes, {}});
        def->min_operands == 2 && of_two.ok() && (*of_two)[0] == wholes[0]) {
      arithmetic_.push_back(def);
    }
    const TensorType types[] = {{DType::kF32, {}}, {DType::kF32, {}}};
    const auto results = def->infer({std::span(types, def->min_operands == 1 ? 1 : 2), {}});
    if (def->kind == "cast" || (results.ok() && (*results)[0] != types[0])) turns_.push_back(def);
  }
  for (const OpDef* def : program::Registry::Standard().All()) {
    if (!IsOfWholePrograms(*def) || def->elementwise) continue;
    if (def->kind == "matmul") product_ = def;
    if (WindowRecipeOf(def->kind) != nullptr) windows_.push_back(def);
    const TensorType types[] = {{DType::kF32, {4, 4}}, {DType::kF32, {4, 4}}};
    const Attrs attrs = {{"axes", std::vector<int64_t>{0}}};
    const program::OpCall call{std::span(types, def->min_operands == 1 ? 1 : 2), attrs};
    const auto results = def->infer(call);
    if (!results.ok()) continue;
    const auto factors = def->factors(call, *results).factors;
    if (std::any_of(factors.begin(), factors.end(), [](const program::Factor& factor) {
          return factor.kind != program::FactorKind::kMap &&
                 factor.kind != program::FactorKind::kWhole;
        })) {
      reductions_.push_back(def);
    }
  }
}

const OpDef& Drawer::NextKind(const std::vector<const OpDef*>& kinds) {
  for (;;) {
    if (Chance(0.15)) return *OneOf(reductions_);
    // Few among many, of more types than any other.
    if (Chance(0.05)) return *OneOf(arithmetic_);
    // One op among many, with more ways to be run than any other.
    if (!chains_ && Chance(0.05)) return *product_;
    if (!chains_ && Chance(0.1)) return *OneOf(windows_);
    if (chains_ && Chance(0.16)) return *OneOf(between_);
    if (chains_ && Chance(0.16)) return *OneOf(turns_);
    const OpDef& def = *OneOf(kinds);
    if (!chains_ || def.elementwise || Chance(0.2)) return def;
  }
}

double Drawer::NumberOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return static_cast<double>(Pick(2));
    case DType::kU8:
      return static_cast<double>(Pick(Chance(0.5) ? 4 : 256));
    case DType::kI32:
      return static_cast<double>(static_cast<int32_t>(Chance(0.8) ? Pick(9) - 4 : Bits()));
    case DType::kI64:
      return Chance(0.8) ? static_cast<double>(Pick(9)) - 4
                         : static_cast<double>(static_cast<int64_t>(Bits()) >> 11);
    default:
      break;
  }
  static const std::vector<double> plain = {0, 1, -1, 2, 0.5, -0.25, 3, 0.0625};
  return Chance(0.6) ? OneOf(plain) : static_cast<double>(Pick(4001)) / 1000 - 2;
}

DType Drawer::AnyDType() {
  if (Chance(of_16_bits_)) return Half();
  if (chains_ && Chance(0.4)) return DType::kF32;
  static const std::vector<DType> types = {DType::kF32,  DType::kF32, DType::kF32, DType::kF64,
                                           DType::kI32,  DType::kI64, DType::kU8,  DType::kBool,
                                           DType::kBF16, DType::kF16};
  return OneOf(types);
}

Dims Drawer::SomeDims(int most_rank) {
  if (chains_ && Chance(0.85)) return chain_dims_;
  for (;;) {
    Dims dims(Chance(0.1) ? 0 : 1 + Pick(most_rank));
    for (int64_t& size : dims) size = Chance(0.1) ? 1 : OneOf(sizes_);
    if (Fits(dims)) return dims;
  }
}

std::string Drawer::Name(const std::string& numbers) {
  static const std::vector<std::string> odd = {"", "", "", " \"of\" %1", "-1/b.c", ":\n\\ ="};
  return numbers + std::to_string(names_++) + OneOf(odd);
}

std::optional<Drawer::Known> Drawer::Some(const std::function<bool(const Known&)>& fits) {
  if (focus_ && fits(*focus_) && Chance(0.9)) return focus_;
  std::vector<const Known*> fitting;
  for (const Known& v : values_) {
    if (fits(v)) fitting.push_back(&v);
  }
  if (fitting.empty()) return {};
  const size_t recent = std::min<size_t>(fitting.size(), 5);
  return *fitting[Chance(0.6) ? fitting.size() - 1 - Pick(recent) : Pick(fitting.size())];
}

Value Drawer::Any() {
  const auto any = Some([](const Known&) { return true; });
  return any && Chance(0.9) ? any->value : Fresh({AnyDType(), SomeDims()});
}

Value Drawer::SomeOr(const std::function<bool(const Known&)>& fits, const TensorType& type,
                     const std::string& numbers) {
  const auto some = Some(fits);
  if (some && Chance(0.92)) return some->value;
  return Fresh(type, numbers);
}

Value Drawer::Beside(Value a) {
  // Loops over integers and booleans take a number as a block of copies.
  const double number = !chains_ ? 0.15 : mesh::IsFloat(a.dtype()) ? 0.25 : 0.5;
  if (Chance(number)) return builder_.Constant(NumberOf(a.dtype()), a.dtype());
  const auto broadcasts = [&](const Known& v) {
    if (v.value.dtype() != a.dtype()) return false;
    const Dims& x = v.value.dims();
    const Dims& y = a.dims();
    Dims dims;
    for (size_t k = 1; k <= std::max(x.size(), y.size()); ++k) {
      const int64_t p = k <= x.size() ? x[x.size() - k] : 1,
                    q = k <= y.size() ? y[y.size() - k] : 1;
      if (p != q && p != 1 && q != 1) return false;
      dims.push_back(std::max(p, q));
    }
    return Fits(dims);
  };
  Dims dims = a.dims();
  if (Chance(0.3)) {  // a row, a column, a number
    for (int64_t& size : dims) size = Chance(0.5) ? 1 : size;
    if (!dims.empty() && Chance(0.5)) dims.erase(dims.begin());
  }
  return SomeOr(broadcasts, {a.dtype(), dims}, "");
}

Value Drawer::Fresh(const TensorType& type, std::string numbers) {
  const bool plain = numbers.empty();
  if (plain)
    numbers = mesh::IsFloat(type.dtype) ? (Chance(0.3)   ? "wide"
                                           : Chance(0.1) ? "negative"
                                                         : "x")
              : Chance(0.2)             ? "wide"
                                        : "n";
  Value v;
  if (plain && Chance(0.25)) {
    v = builder_.Append1("fill", {},
                         {{"dims", type.dims},
                          {"value", NumberOf(type.dtype)},
                          {"dtype", std::string(mesh::DTypeName(type.dtype))}});
  } else if (Chance(0.3) && variables_.size() < 4) {
    variables_.emplace_back(Name(numbers), type);
    v = builder_.Read(variables_.back());
  } else if (builder_.program().inputs.size() < kMostInputs) {
    v = builder_.Input(Name(numbers), type);
  } else {
    v = builder_.Append1("fill", {},
                         {{"dims", type.dims},
                          {"value", numbers == "positive" || numbers == "labels" ? 1.0 : 0.0},
                          {"dtype", std::string(mesh::DTypeName(type.dtype))}});
  }
  if (Evaluate()) Use(v);
  return v;
}

bool Drawer::Evaluate() {
  // Calls are checked before they are recorded: an error is the drawer's own.
  if (!builder_.status().ok()) {
    std::fprintf(stderr, "%s\n", builder_.status().ToString().c_str());
    MT_CHECK(builder_.status().ok());
  }
  const program::Program& p = builder_.program();
  arrays_.resize(p.values.size());
  const auto feed = [&](const std::string& name, program::ValueId v) {
    if (arrays_[v].error.empty()) arrays_[v] = Given(FeedFor(name, p.type(v), feed_));
  };
  for (const program::Port& port : p.inputs) feed(port.name, port.value);
  for (const program::State& s : p.states) feed(s.name, s.entry);
  for (; evaluated_ < p.ops.size(); ++evaluated_) {
    const program::Op& op = p.ops[evaluated_];
    std::vector<const Array*> operands;
    for (const program::ValueId v : op.operands) operands.push_back(&arrays_[v]);
    auto result = EvaluateOp(op, operands, {p.type(op.results[0])}, {.keep = Keep::kBounded});
    if (!result.ok()) return false;
    work_ += p.type(op.results[0]).num_elements();
    arrays_[op.results[0]] = std::move((*result)[0]);
  }
  return true;
}

bool Drawer::IsUsable(const Array& a) const {
  // Of up to 16 parts of a sum none may be so large that all of them might not be finite.
  const double most =
      a.type.dtype == DType::kF16 ? mesh::LargestFinite(DType::kF16) / 32 : kMostSize;
  size_t loose = 0;
  for (size_t i = 0; i < a.at.size(); ++i) {
    if (!mesh::IsFloat(a.type.dtype)) {
      loose += a.error[i] != 0 ? 1 : 0;
      continue;
    }
    const auto size = static_cast<double>(std::abs(a.at[i]));
    if (!(size <= most) || !(a.error[i] <= most)) return false;
    const double much = std::max(1e-4, 8 * mesh::UnitRoundoff(a.type.dtype));
    loose += a.error[i] > much * std::max(size, 0.1) ? 1 : 0;
  }
  return loose * 50 <= a.at.size();
}

void Drawer::Use(Value v) {
  const Array& a = arrays_[v.id()];
  if (a.at.empty()) return;
  const auto [low, high] = std::minmax_element(a.at.begin(), a.at.end());
  values_.push_back({v, static_cast<double>(*low), static_cast<double>(*high)});
}

std::optional<Call> Drawer::DrawCall(const OpDef& def, int attempt) {
  if (const Recipe recipe = RecipeOf(def.kind); recipe != nullptr) return recipe(*this);
  // Operands of one type, at first what is there, then one type after the other.
  static const DType types[] = {DType::kF32, DType::kI32, DType::kBool, DType::kF64};
  Call call;
  const int most = def.max_operands < 0 ? def.min_operands + 2 : def.max_operands;
  const int n = def.min_operands + static_cast<int>(Pick(most - def.min_operands + 1));
  for (int i = 0; i < n; ++i) {
    const auto whole = [](const Known& v) {
      return !mesh::IsFloat(v.value.dtype()) && v.value.dtype() != DType::kBool;
    };
    const auto narrow = [](const Known& v) { return v.value.dtype() == DType::kU8; };
    const auto some = Chance(0.3) ? Some(narrow) : Some(whole);
    if (i == 0 && attempt == 0 && some && Chance(0.4)) {
      call.operands.push_back(some->value);
    } else if (i == 0) {
      call.operands.push_back(
          attempt < kAttempts / 2
              ? Any()
              : Fresh({Chance(of_16_bits_) ? Half() : types[attempt % 4], SomeDims()}));
    } else {
      call.operands.push_back(Chance(0.05) ? call.operands[0] : Beside(call.operands[0]));
    }
  }
  return call;
}

bool Drawer::TryCall(const OpDef& def, const Call& call) {
  std::vector<TensorType> types;
  for (const Value& v : call.operands) types.push_back(v.type());
  const auto results = def.infer({types, call.attrs});
  if (!results.ok() || !Fits((*results)[0].dims)) return false;
  const std::vector<program::Operand> operands(call.operands.begin(), call.operands.end());
  std::optional<program::Builder::NameScope> scope;
  if (Chance(0.2)) scope.emplace(builder_, Chance(0.5) ? "block" : "odd \"scope\"");
  const Value v = builder_.Append1(def.kind, operands, call.attrs);
  if (!Evaluate() || !IsUsable(arrays_[v.id()])) return false;
  Use(v);
  return true;
}

bool Drawer::TryOp(const OpDef& def) {
  if (def.kind == "relayout" && options_.axes.empty()) return false;
  for (int attempt = 0; attempt < kAttempts && work_ < kMostWork; ++attempt) {
    const auto call = DrawCall(def, attempt);
    if (!call || !TryCall(def, *call)) continue;
    if (def.kind == options_.kind) wanted_.push_back(values_.back().value);
    return true;
  }
  return false;
}

void Drawer::TryReaders() {
  if (!TryOp(*OneOf(reductions_))) return;
  const Known sum = values_.back();
  for (size_t readers = 1 + Pick(3); readers > 0; --readers) {
    focus_ = sum;
    if (TryOp(*OneOf(Chance(0.6) ? readers_ : between_)) && Chance(0.7)) {
      focus_ = values_.back();
      TryOp(*OneOf(reductions_));
    }
  }
  focus_.reset();
}

void Drawer::TryPendingWay() {
  Dims dims = SomeDims();
  dims.resize(2, OneOf(sizes_));
  if (options_.axes.empty() || !Fits(dims)) return;
  const program::Builder::Scope scope(builder_);
  const Value x = Fresh({FloatDType(), dims}, "x");
  const auto summed = static_cast<int64_t>(Pick(2));
  std::vector<std::string> specs(2, "*");
  specs[summed] = OneOf(options_.axes);
  const Value sum = program::ReduceSum(program::Relayout(x, specs), {summed});
  if (!Evaluate() || !IsUsable(arrays_[sum.id()])) return;
  Use(sum);
  focus_ = values_.back();
  if (TryOp(*OneOf(lone_readers_))) {
    const Known gone[] = {*focus_, values_.back()};
    const Value read = gone[1].value;
    const Value all =
        program::ReduceSum(read.dtype() == DType::kBool ? program::Cast(read, DType::kI32) : read);
    if (Evaluate() && IsUsable(arrays_[all.id()])) {
      Forget(gone);
      Use(all);
    }
  }
  focus_.reset();
}

void Drawer::Forget(std::span<const Known> values) {
  std::erase_if(values_, [&](const Known& v) {
    return std::any_of(values.begin(), values.end(),
                       [&](const Known& gone) { return gone.value.id() == v.value.id(); });
  });
}

void Drawer::TryGradient() {
  const auto depends = Some([&](const Known& v) {
    return mesh::IsFloat(v.value.dtype()) && builder_.program().values[v.value.id()].op >= 0;
  });
  if (!depends) return;
  std::vector<Value> wrt;
  const program::Program& p = builder_.program();
  for (const Known& v : values_) {
    if (mesh::IsFloat(v.value.dtype()) && p.values[v.value.id()].op < 0 && wrt.size() < 4) {
      wrt.push_back(v.value);
    }
  }
  if (wrt.empty()) return;
  const program::Builder::Scope scope(builder_);
  Value loss = depends->value;
  if (Chance(0.3)) loss = Square(loss);
  loss = Chance(0.5) ? ReduceMean(loss) : ReduceSum(loss);
  const bool again = Chance(0.3);
  builder_.ComputeAgain([again](std::string_view path) {
    return again && path.starts_with("block") ? path.substr(0, 5) : std::string_view();
  });
  const std::vector<Value> gradients = builder_.Gradient(loss, std::span<const Value>(wrt));
  if (!builder_.status().ok() || !Evaluate()) return;
  if (IsUsable(arrays_[loss.id()])) Use(loss);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Value g = gradients[i];
    if (!IsUsable(arrays_[g.id()])) continue;
    Use(g);
    wanted_.push_back(g);
    // A step of gradient descent, where the operand is a variable.
    if (!Chance(0.5)) continue;
    for (const program::Variable& variable : variables_) {
      if (builder_.Read(variable).id() != wrt[i].id()) continue;
      builder_.Assign(variable, wrt[i] - 0.125 * g);
      if (!Evaluate()) return;
    }
  }
}

void Drawer::AssignSome() {
  if (variables_.empty()) return;
  const program::Variable& variable = OneOf(variables_);
  const auto newest = Some([&](const Known& v) { return v.value.type() == variable.type(); });
  if (!newest) return;
  builder_.Assign(variable, newest->value);
  if (Chance(0.3)) {  // read back what was assigned
    Use(builder_.Read(variable));
  }
}

Result<program::Program> Drawer::Finish() {
  // What nothing reads is an output, so that little is dead; some values inside are outputs too.
  std::vector<char> used(builder_.program().values.size(), 0);
  for (const program::Op& op : builder_.program().ops) {
    for (const program::ValueId v : op.operands) used[v] = 1;
  }
  std::vector<Value> outputs = wanted_;
  for (const Known& v : values_) {
    const auto is_it = [&](const Value& w) { return w.id() == v.value.id(); };
    if (std::any_of(wanted_.begin(), wanted_.end(), is_it)) continue;
    const bool computed = builder_.program().values[v.value.id()].op >= 0;
    if (computed ? (used[v.value.id()] == 0 || Chance(0.08)) : Chance(0.03)) {
      outputs.push_back(v.value);
    }
  }
  // Some as sums alone: nothing else asks for them whole, so a pending sum may go all the way.
  for (size_t i = wanted_.size(); i < outputs.size(); ++i) {
    Value& v = outputs[i];
    if (!mesh::IsFloat(v.dtype()) || v.rank() == 0 || !Chance(0.3)) continue;
    const program::Builder::Scope scope(builder_);
    const Value sum = program::ReduceSum(v);
    if (Evaluate() && IsUsable(arrays_[sum.id()])) v = sum;
  }
  if (outputs.empty() && !values_.empty()) outputs.push_back(values_.back().value);
  std::shuffle(outputs.begin(), outputs.end(), random_);
  const size_t most = std::max<size_t>(wanted_.size(), 6);
  for (const Value& v : wanted_) {
    std::stable_partition(outputs.begin(), outputs.end(),
                          [&](const Value& o) { return o.id() == v.id(); });
  }
  if (outputs.size() > most) outputs.resize(most);
  for (size_t i = 0; i < outputs.size(); ++i) {
    builder_.Output((Chance(0.1) ? "odd: \"y\" " : "y") + std::to_string(i), outputs[i]);
  }
  return builder_.Build();
}

}  // namespace meshtrain::testing::random
