#include "runtime/device/cpu/fused/chain.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>
#include <optional>

#include "runtime/base/check.h"
#include "runtime/program/ops.h"

namespace meshtrain::device::cpu {
namespace fused {

using mesh::TensorType;

namespace {

Source ConstantOf(DType dtype, double number) {
  return {.kind = Source::kConstant, .constant = ElementOf(dtype, number), .dtype = dtype};
}

// Of a constant that is a floating-point number.
std::optional<double> NumberOf(const Source& s) {
  if (s.kind != Source::kConstant) return std::nullopt;
  const auto as = [&](auto number) -> double {
    std::memcpy(&number, s.constant.bytes, sizeof number);
    return number;
  };
  if (s.dtype == DType::kF32) return as(0.0F);
  if (s.dtype == DType::kF64) return as(0.0);
  return std::nullopt;
}

// As exact as any other number of its type: not 0, infinite, or so small that digits are missing.
bool IsNormal(const Source& constant) {
  const double number = NumberOf(constant).value_or(0);
  return constant.dtype == DType::kF32 ? std::isnormal(static_cast<float>(number))
                                       : std::isnormal(number);
}

struct Kind {
  BlockOp op;
  int operands;
};

const std::map<std::string, Kind, std::less<>>& Kinds() {
  static const std::map<std::string, Kind, std::less<>> kinds = {
      {"add", {BlockOp::kAdd, 2}},
      {"sub", {BlockOp::kSub, 2}},
      {"mul", {BlockOp::kMul, 2}},
      {"div", {BlockOp::kDiv, 2}},
      {"pow", {BlockOp::kPow, 2}},
      {"maximum", {BlockOp::kMaximum, 2}},
      {"minimum", {BlockOp::kMinimum, 2}},
      {"equal", {BlockOp::kEqual, 2}},
      {"not_equal", {BlockOp::kNotEqual, 2}},
      {"less", {BlockOp::kLess, 2}},
      {"less_equal", {BlockOp::kLessEqual, 2}},
      {"greater", {BlockOp::kGreater, 2}},
      {"greater_equal", {BlockOp::kGreaterEqual, 2}},
      {"logical_and", {BlockOp::kAnd, 2}},
      {"logical_or", {BlockOp::kOr, 2}},
      {"logical_not", {BlockOp::kNot, 1}},
      {"neg", {BlockOp::kNeg, 1}},
      {"abs", {BlockOp::kAbs, 1}},
      {"sign", {BlockOp::kSign, 1}},
      {"floor", {BlockOp::kFloor, 1}},
      {"square", {BlockOp::kSquare, 1}},
      {"sqrt", {BlockOp::kSqrt, 1}},
      {"rsqrt", {BlockOp::kRsqrt, 1}},
      {"exp", {BlockOp::kExp, 1}},
      {"log", {BlockOp::kLog, 1}},
      {"log1p", {BlockOp::kLog1p, 1}},
      {"expm1", {BlockOp::kExpm1, 1}},
      {"sin", {BlockOp::kSin, 1}},
      {"cos", {BlockOp::kCos, 1}},
      {"softplus", {BlockOp::kSoftplus, 1}},
      {"erf", {BlockOp::kErf, 1}},
      {"tanh", {BlockOp::kTanh, 1}},
      {"sigmoid", {BlockOp::kSigmoid, 1}},
      {"relu", {BlockOp::kRelu, 1}},
      {"gelu", {BlockOp::kCopy, 1}},
      {"stop_gradient", {BlockOp::kCopy, 1}},
      {"broadcast_to", {BlockOp::kCopy, 1}},
      {"cast", {BlockOp::kCopy, 1}},
      {"select", {BlockOp::kSelect, 3}},
      {"sigmoid_cross_entropy", {BlockOp::kCopy, 2}},
  };
  return kinds;
}

}  // namespace

bool Source::operator==(const Source& other) const {
  if (kind != other.kind || dtype != other.dtype) return false;
  switch (kind) {
    case kNode:
      return node == other.node && of_row == other.of_row;
    case kFull:
    case kElement:
    case kBroadcast:
      return value == other.value;
    case kConstant:
      return std::memcmp(constant.bytes, other.constant.bytes, sizeof constant.bytes) == 0;
  }
  return false;
}

Chain::Chain(const Making& making, std::span<const int> ops)
    : making_(making), local_(making.local()) {
  domain_ = local_.type(local_.ops[ops.back()].results[0]).dims;
  for (const int op : ops) {
    const plan::Folded folded = plan::FoldedBy(local_, local_.ops[op]);
    if (folded.kind == plan::Folded::kNothing) continue;
    domain_ = local_.type(local_.ops[op].operands[0]).dims;
    // Both are the last dimensions of the domain, from one of them on.
    if (folded.kind == plan::Folded::kRows) row_ = folded.count;
    unit_ = std::max({unit_, row_, folded.columns});
  }
  for (const int op : ops) Add(local_.ops[op]);
  for (Node& n : nodes_) {
    for (const Source& s : n.in) {
      if (s.kind == Source::kNode) ++nodes_[s.node].uses;
    }
  }
  MergePairs();
}

void Chain::Add(const Op& op) {
  const plan::Folded folded = plan::FoldedBy(local_, op);
  if (folded.kind != plan::Folded::kNothing) return AddFold(op, folded);
  // A reshape, of what a fold gives.
  const auto known = Kinds().find(op.kind);
  const Kind kind = known == Kinds().end() ? Kind{BlockOp::kCopy, 1} : known->second;
  const TensorType& result = local_.type(op.results[0]);
  const int64_t elements = result.num_elements(), whole = mesh::NumElements(domain_);
  in_row_ = row_ > 0 && elements != whole;
  MT_CHECK(elements == whole || elements * row_ == whole);
  std::vector<Source> in;
  for (const ValueId v : op.operands) in.push_back(SourceOf(v));
  if (op.kind == "sigmoid_cross_entropy") {
    // max(x, 0) - x z + log(1 + exp(-|x|))
    const DType t = result.dtype;
    const Source x = in[0], z = in[1];
    const Source soft = Append(
        BlockOp::kLog1p, t,
        {Append(BlockOp::kExp, t, {Append(BlockOp::kNeg, t, {Append(BlockOp::kAbs, t, {x})})})});
    const Source linear = Append(BlockOp::kNegMulAdd, t, {x, z, Append(BlockOp::kRelu, t, {x})});
    in = {linear, soft};
    Finish(op, Append(BlockOp::kAdd, t, in));
    return;
  }
  if (op.kind == "gelu") return AddGelu(op, in[0]);
  const bool cast = op.kind == "cast" && in[0].dtype != result.dtype;
  const ValueId v = op.results[0];
  const bool kept = making_.plan.slots[v].kind != plan::SlotKind::kNone;
  if (!cast && !kept) {
    if (kind.op == BlockOp::kCopy) {
      same_[v] = op.operands[0];
      return;
    }
    made_[v] = Once(kind.op, result.dtype, std::move(in)).node;
    return;
  }
  const Source made = Append(kind.op, result.dtype, std::move(in));
  nodes_[made.node].cast = cast;
  Finish(op, made);
}

void Chain::AddFold(const Op& op, const plan::Folded& folded) {
  in_row_ = false;
  const Source whole = SourceOf(op.operands[0]);
  const bool rows = folded.kind == plan::Folded::kRows;
  in_row_ = rows;
  const Source made = Append(BlockOp::kCopy, whole.dtype, {whole});
  Node& node = nodes_[made.node];
  if (rows) {
    node.fold = FoldOf(op);
  } else {
    node.columns = folded.columns;
  }
  Finish(op, made);
}

void Chain::AddGelu(const Op& op, const Source& x) {
  // x times a curve, in the nodes that gelu's gradient is made of (GeluGradient in
  // program/ops/elementwise.cc): where both are in one chain, the curve is computed once.
  const DType t = x.dtype;
  const auto number = [&](double v) { return ConstantOf(t, v); };
  Source curve;
  if (op.attrs.Bool("approximate")) {
    const Source square = Once(BlockOp::kSquare, t, {x});
    const Source cubic = Once(BlockOp::kMul, t, {number(program::kGeluCubic), square});
    const Source slope = Once(BlockOp::kAdd, t, {number(program::kGeluLinear), cubic});
    curve = Once(BlockOp::kSigmoid, t, {Once(BlockOp::kMul, t, {x, slope})});
  } else {
    const Source scaled = Once(BlockOp::kMul, t, {x, number(1.0 / std::numbers::sqrt2)});
    const Source sum = Once(BlockOp::kAdd, t, {number(1), Once(BlockOp::kErf, t, {scaled})});
    curve = Once(BlockOp::kMul, t, {number(0.5), sum});
  }
  Finish(op, Append(BlockOp::kMul, t, {x, curve}));
}

Source Chain::Once(BlockOp op, DType dtype, std::vector<Source> in) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    const bool computes = !n.cast && !n.fold && n.columns == 0;
    if (n.op == op && computes && n.row == in_row_ && n.dtype == dtype && n.in == in) {
      return {.kind = Source::kNode, .node = static_cast<int>(i), .dtype = dtype};
    }
  }
  return Append(op, dtype, std::move(in));
}

Source Chain::Append(BlockOp op, DType dtype, std::vector<Source> in) {
  nodes_.push_back({.op = op, .in = std::move(in), .dtype = dtype, .row = in_row_});
  return {.kind = Source::kNode, .node = static_cast<int>(nodes_.size()) - 1, .dtype = dtype};
}

void Chain::Finish(const Op& op, const Source& made) {
  const ValueId v = op.results[0];
  nodes_[made.node].value = v;
  nodes_[made.node].stored = making_.plan.slots[v].kind != plan::SlotKind::kNone;
  made_[v] = made.node;
}

Source Chain::SourceOf(ValueId v) const {
  if (const auto it = same_.find(v); it != same_.end()) return SourceOf(it->second);
  const TensorType& type = local_.type(v);
  Source s{.value = v, .dtype = type.dtype};
  if (const auto it = made_.find(v); it != made_.end()) {
    s.kind = Source::kNode;
    s.node = it->second;
    s.of_row = nodes_[s.node].row && !in_row_;
    return s;
  }
  const int producer = local_.values[v].op;
  if (type.num_elements() == 1 && producer >= 0 && local_.ops[producer].kind == "constant") {
    const program::Attrs& attrs = local_.ops[producer].attrs;
    s.kind = Source::kConstant;
    s.constant = ElementOf(
        type.dtype, attrs.Has("values") ? attrs.Doubles("values")[0] : attrs.Double("value"));
  } else if (type.num_elements() * (in_row_ ? row_ : 1) == mesh::NumElements(domain_)) {
    s.kind = Source::kFull;  // a broadcast that stretches nothing moves nothing
  } else if (type.num_elements() == 1) {
    s.kind = Source::kElement;
  } else {
    s.kind = Source::kBroadcast;
  }
  return s;
}

Node* Chain::Alone(const Source& s) {
  if (s.kind != Source::kNode || s.of_row) return nullptr;
  Node& n = nodes_[s.node];
  return n.uses == 1 && !n.stored && !n.cast && !n.dead ? &n : nullptr;
}

void Chain::Replace(Node& n, Node& gone, BlockOp op, std::vector<Source> in) {
  n.op = op;
  n.in = std::move(in);
  n.cast = false;
  gone.dead = true;
}

bool Chain::VectorFirst(Node& n) {
  if (n.in[0].scalar()) std::swap(n.in[0], n.in[1]);
  return !n.in[0].scalar();
}

void Chain::MergePairs() {
  for (Node& n : nodes_) {
    if (n.dead || n.cast || !mesh::IsFloat(n.dtype)) continue;
    if (n.op == BlockOp::kDiv) MergeIntoDiv(n);
    if (n.op == BlockOp::kMul) MergeScales(n);
    if (n.op == BlockOp::kMul) MergeIntoMul(n);
    if (n.op == BlockOp::kAdd || n.op == BlockOp::kSub) MergeIntoSum(n);
  }
}

void Chain::MergeIntoDiv(Node& n) {
  if (const auto divisor = NumberOf(n.in[1]); divisor && !n.in[0].scalar()) {
    const Source inverse = ConstantOf(n.dtype, 1 / *divisor);
    if (!IsNormal(inverse)) return;
    n.op = BlockOp::kMul;
    n.in[1] = inverse;
    return;
  }
  Node* from = Alone(n.in[0]);
  if (n.in[1].scalar() || from == nullptr || from->op != BlockOp::kMul || !VectorFirst(*from)) {
    return;
  }
  Replace(n, *from, BlockOp::kMulDiv, {from->in[0], from->in[1], n.in[1]});
}

void Chain::MergeScales(Node& n) {
  const auto second = VectorFirst(n) ? NumberOf(n.in[1]) : std::nullopt;
  Node* from = second ? Alone(n.in[0]) : nullptr;
  if (from == nullptr || from->op != BlockOp::kMul || !VectorFirst(*from)) return;
  const auto first = NumberOf(from->in[1]);
  if (!first) return;
  const Source product = ConstantOf(n.dtype, *first * *second);
  if (IsNormal(product)) Replace(n, *from, BlockOp::kMul, {from->in[0], product});
}

void Chain::MergeIntoMul(Node& n) {
  for (const int i : {0, 1}) {
    const Source other = n.in[1 - i];
    if (n.in[i].kind != Source::kNode || n.in[i].of_row) continue;
    Node& from = nodes_[n.in[i].node];
    if (from.uses != 1 || from.stored || from.dead) continue;
    if (from.cast) {
      // The gradient of relu: g * cast(y > s).
      Node* compare = Alone(from.in[0]);
      if (compare == nullptr || compare->op != BlockOp::kGreater ||
          compare->in[0].dtype != n.dtype || compare->in[0].scalar()) {
        continue;
      }
      from.dead = true;
      return Replace(n, *compare, BlockOp::kKeepWhere, {compare->in[0], other, compare->in[1]});
    }
    if (from.op == BlockOp::kSquare && !from.in[0].scalar()) {
      return Replace(n, from, BlockOp::kSquareMul, {from.in[0], other});
    }
    const bool squares = from.op == BlockOp::kMul && from.in[0].kind == from.in[1].kind &&
                         from.in[0].node == from.in[1].node &&
                         from.in[0].value == from.in[1].value &&
                         (from.in[0].kind == Source::kNode || from.in[0].kind == Source::kFull);
    if (squares) {
      if (from.in[0].kind == Source::kNode) --nodes_[from.in[0].node].uses;
      return Replace(n, from, BlockOp::kSquareMul, {from.in[0], other});
    }
  }
}

void Chain::MergeIntoSum(Node& n) {
  const bool add = n.op == BlockOp::kAdd;
  for (const int i : {0, 1}) {
    Node* from = Alone(n.in[i]);
    if (from == nullptr) continue;
    const Source other = n.in[1 - i];
    if (from->op == BlockOp::kMul && VectorFirst(*from)) {
      const BlockOp op = add ? BlockOp::kMulAdd : i == 0 ? BlockOp::kMulSub : BlockOp::kNegMulAdd;
      return Replace(n, *from, op, {from->in[0], from->in[1], other});
    }
    if (from->op == BlockOp::kSqrt && add && !from->in[0].scalar()) {
      if (Node* product = Alone(from->in[0]);
          product != nullptr && product->op == BlockOp::kMul && VectorFirst(*product)) {
        from->dead = true;
        return Replace(n, *product, BlockOp::kMulSqrtAdd, {product->in[0], product->in[1], other});
      }
      return Replace(n, *from, BlockOp::kSqrtAdd, {from->in[0], other});
    }
  }
}

}  // namespace fused

bool IsFused(const program::Op& op) {
  return IsElementwise(op) || FoldOf(op) || op.kind == "reshape";
}

bool IsElementwise(const program::Op& op) { return fused::Kinds().contains(op.kind); }

}  // namespace meshtrain::device::cpu
