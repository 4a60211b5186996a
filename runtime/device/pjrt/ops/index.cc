// Classes and labels, over the last dimension.
#include <cmath>
#include <limits>

#include "runtime/device/pjrt/ops/rows.h"

namespace meshtrain::device::pjrt {
namespace {

using program::Op;

// A row's value at every class.
Node Spread(Module& m, const Node& row, const Dims& dims) {
  std::vector<int64_t> mapping;
  for (int64_t d = 0; d + 1 < static_cast<int64_t>(dims.size()); ++d) mapping.push_back(d);
  return m.BroadcastInDim(row, dims, mapping);
}

Node SumLast(Module& m, const Node& a) {
  return m.Reduce("add", a, {a.rank() - 1}, m.Splat(a.element, {}, 0));
}

// x less the row's largest, its exponentials, and the sum of them.
struct Shifted {
  Node x, exp, sum;
  Shifted(Module& m, const Node& logits) {
    const Node top =
        m.Reduce("maximum", logits, {logits.rank() - 1}, m.Splat(logits.element, {}, -HUGE_VAL));
    x = m.Binary("subtract", logits, Spread(m, top, logits.dims));
    exp = m.Unary("exponential", x);
    sum = SumLast(m, exp);
  }
};

Node SoftmaxOf(Module& m, const Node& logits) {
  const Shifted s(m, logits);
  return m.Binary("divide", s.exp, Spread(m, s.sum, logits.dims));
}

Node LogSoftmaxOf(Module& m, const Node& logits) {
  const Shifted s(m, logits);
  return m.Binary("subtract", s.x, Spread(m, m.Unary("log", s.sum), logits.dims));
}

// 1 where the class is the label, in `element`.
Node Hot(Module& m, const Node& labels, const Dims& dims, const std::string& element) {
  const Node at = m.Iota(labels.element, dims, static_cast<int64_t>(dims.size()) - 1);
  return m.Convert(m.Compare("EQ", at, Spread(m, labels, dims)), element);
}

// Whether a label is a class.
Node Inside(Module& m, const Node& labels, int64_t classes) {
  return m.Binary("and", m.Compare("GE", labels, m.Like(labels, 0)),
                  m.Compare("LT", labels, m.Like(labels, static_cast<double>(classes))));
}

void Softmax(Lowering& l, const Op& op) { l.Set(op.results[0], SoftmaxOf(l.m(), l.In(op, 0))); }
void LogSoftmax(Lowering& l, const Op& op) {
  l.Set(op.results[0], LogSoftmaxOf(l.m(), l.In(op, 0)));
}

void SparseCrossEntropy(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node logits = l.In(op, 0), labels = l.In(op, 1);
  const Shifted s(m, logits);
  const Node hot = m.Compare("EQ", m.Iota(labels.element, logits.dims, logits.rank() - 1),
                             Spread(m, labels, logits.dims));
  // Chosen, not multiplied: a class of -infinity has no part in it.
  const Node at_label = SumLast(m, m.Select(hot, s.x, m.Like(s.x, 0)));
  const Node loss = m.Binary("subtract", m.Unary("log", s.sum), at_label);
  l.Set(op.results[0], m.Select(Inside(m, labels, logits.dims.back()), loss,
                                m.Like(loss, std::numeric_limits<double>::quiet_NaN())));
}

void SparseCrossEntropyGrad(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node logits = l.In(op, 0), labels = l.In(op, 1), g = l.In(op, 2);
  const Node difference =
      m.Binary("subtract", SoftmaxOf(m, logits), Hot(m, labels, logits.dims, logits.element));
  const Node grad = m.Binary("multiply", Spread(m, g, logits.dims), difference);
  l.Set(op.results[0], m.Select(Spread(m, Inside(m, labels, logits.dims.back()), logits.dims), grad,
                                m.Like(grad, std::numeric_limits<double>::quiet_NaN())));
}

void CrossEntropy(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node terms = m.Binary("multiply", LogSoftmaxOf(m, l.In(op, 0)), l.In(op, 1));
  l.Set(op.results[0], m.Unary("negate", SumLast(m, terms)));
}

void OneHot(Lowering& l, const Op& op) {
  const mesh::TensorType& type = l.type(op.results[0]);
  l.Set(op.results[0], Hot(l.m(), l.In(op, 0), type.dims, ElementOf(type.dtype)));
}

}  // namespace

void AddIndex(Rows& rows) {
  rows["softmax"] = Softmax;
  rows["log_softmax"] = LogSoftmax;
  rows["sparse_softmax_cross_entropy"] = SparseCrossEntropy;
  rows["sparse_softmax_cross_entropy_grad"] = SparseCrossEntropyGrad;
  rows["softmax_cross_entropy"] = CrossEntropy;
  rows["one_hot"] = OneHot;
}

}  // namespace meshtrain::device::pjrt
