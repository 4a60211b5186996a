// The operations as functions. Every argument may be a Value, a Variable or a number; element-wise
// functions broadcast as NumPy does (dimensions aligned at the end, size 1 stretches). Errors go to
// the builder (builder.h), with the caller's line.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/program/builder.h"

namespace meshtrain::program {

// --- element-wise, broadcasting (ops/elementwise.cc). Operands of one dtype, the result's;
// comparisons give bool.
Value operator+(const Operand& a, const Operand& b);
Value operator-(const Operand& a, const Operand& b);
Value operator*(const Operand& a, const Operand& b);
Value operator/(const Operand& a, const Operand& b);
Value operator-(const Operand& a);
Value Add(const Operand& a, const Operand& b);
Value Sub(const Operand& a, const Operand& b);
Value Mul(const Operand& a, const Operand& b);
Value Div(const Operand& a, const Operand& b);
Value Pow(const Operand& a, const Operand& b);
Value Maximum(const Operand& a, const Operand& b);
Value Minimum(const Operand& a, const Operand& b);
Value Neg(const Operand& a);
Value Abs(const Operand& a);
Value Sign(const Operand& a);
Value Floor(const Operand& a);
Value Square(const Operand& a);
Value Sqrt(const Operand& a);
Value Rsqrt(const Operand& a);
Value Exp(const Operand& a);
Value Log(const Operand& a);
Value Log1p(const Operand& a);
Value Expm1(const Operand& a);  // e^a - 1, exact where a is small
Value Sin(const Operand& a);
Value Cos(const Operand& a);
Value Softplus(const Operand& a);  // log(1 + e^a)
Value Erf(const Operand& a);
Value Tanh(const Operand& a);
Value Sigmoid(const Operand& a);
Value Relu(const Operand& a);
Value Gelu(const Operand& a, bool approximate = false);
// By its approximation, gelu(x) = x sigmoid(x (kGeluLinear + kGeluCubic x^2)).
inline constexpr double kGeluLinear = 1.5957691216057308;  // 2 sqrt(2 / pi)
inline constexpr double kGeluCubic = 0.044715 * kGeluLinear;
Value Equal(const Operand& a, const Operand& b);
Value NotEqual(const Operand& a, const Operand& b);
Value Less(const Operand& a, const Operand& b);
Value LessEqual(const Operand& a, const Operand& b);
Value Greater(const Operand& a, const Operand& b);
Value GreaterEqual(const Operand& a, const Operand& b);
Value LogicalAnd(const Operand& a, const Operand& b);
Value LogicalOr(const Operand& a, const Operand& b);
Value LogicalNot(const Operand& a);
// where condition (bool) a else b
Value Select(const Operand& condition, const Operand& a, const Operand& b);
// Floats become whole numbers towards zero, and what the type cannot hold its end (a NaN 0); whole
// numbers keep their low bits in a narrower type of whole numbers, as in C++.
Value Cast(const Operand& a, DType dtype);
Value ClipByValue(const Operand& a, const Operand& low, const Operand& high);
Value SquaredDifference(const Operand& a, const Operand& b);
Value Ceil(const Operand& a);
Value Silu(const Operand& a);                           // a sigmoid(a)
Value Elu(const Operand& a, double alpha = 1);          // a where a > 0, else alpha (e^a - 1)
Value LeakyRelu(const Operand& a, double slope = 0.2);  // a where a > 0, else slope a
Value IsFinite(const Operand& a);                       // bool; of floats
Value IsNan(const Operand& a);
Value StopGradient(const Operand& a);

// --- linear algebra (ops/linear.cc)
// [..., M, K] x [..., K, N] -> [..., M, N], leading dimensions equal or absent on one side;
// transpose_* swap the last two dimensions of an operand first.
Value MatMul(const Operand& a, const Operand& b, bool transpose_a = false,
             bool transpose_b = false);

// --- windows (ops/window.cc) over x [N, S..., C] of 1 to 3 spatial dimensions S, an entry of each
// list for each of them
enum class Padding : uint8_t {
  kValid,     // none: windows lie inside
  kSame,      // ceil(S / stride) positions, the odd element of padding at the end
  kExplicit,  // `low` elements before, `high` after
};
struct Windows {
  Dims sizes = {};      // of sums and maxima; a convolution's are its kernel's
  Dims strides = {};    // none: 1 each
  Dims dilations = {};  // steps between taps; none: 1 each
  Padding padding = Padding::kValid;
  Dims low = {}, high = {};
};
// The padding of windows of `sizes` over spatial dimensions `over`: `low`, `high` and the lists
// that were left out filled in.
Windows WithPadding(Windows windows, const Dims& over, const Dims& sizes);
// x with kernel [K..., C/G, F] -> [N, O..., F]: G groups of channels, each with its own features;
// G = C is a depthwise convolution. No flipping: cross-correlation, as frameworks have it.
//   [8,28,28,1] with [5,5,1,6] -> [8,24,24,6];  kSame -> [8,28,28,6]
Value Conv(const Operand& x, const Operand& kernel, const Windows& windows = {});
// The sum and the largest of each window, channel by channel; padding counts for neither.
Value WindowSum(const Operand& x, const Windows& windows);
Value WindowMax(const Operand& x, const Windows& windows);
// The mean of the elements of each window that are not padding.
Value WindowMean(const Operand& x, const Windows& windows);

// Sums of products, by letters for dimensions: what the result lacks is summed. One or two
// operands.
//   Einsum("bij,bjk->bik", {a, b}) is MatMul(a, b); Einsum("ij->ji", {a}) is its transpose
Value Einsum(const std::string& equation, const std::vector<Operand>& operands);

// --- shape (ops/shape.cc, ops/cut.cc); an axis may be negative: it counts from the end
Value Reshape(const Operand& a, Dims dims);  // one dimension may be -1
// Result dimension d is a's dimension permutation[d], each of them once: [2, 3, 5] with {2, 0, 1}
// -> [5, 2, 3].
Value Transpose(const Operand& a, std::vector<int64_t> permutation);
Value BroadcastTo(const Operand& a, Dims dims);  // aligned at the end, size 1 stretches
// A dimension of size 1 at `axis` of the result: [2, 3] with 1 -> [2, 1, 3], with -1 -> [2, 3, 1].
Value ExpandDims(const Operand& a, int64_t axis);
// Without the dimensions `axes`, each of size 1; no axes: `a` as it is.
Value Squeeze(const Operand& a, std::vector<int64_t> axes);
// One after the other along `axis`; at least one part, of one dtype and rank, the other dimensions
// equal: [2, 3] and [4, 3] along 0 -> [6, 3].
Value Concat(const std::vector<Operand>& parts, int64_t axis);
// Elements starts[d] .. starts[d] + sizes[d] - 1 of each dimension; a size of -1: to its end.
Value Slice(const Operand& a, Dims starts, Dims sizes);
// `before[d]` and `after[d]` elements `value` at both ends of each dimension, none negative: [D] ->
// [before + D + after].
Value Pad(const Operand& a, Dims before, Dims after, double value = 0);

// --- made of those (ops/arrange.cc), reverse apart
// Parts of `sizes`, which make up the axis, in order.
std::vector<Value> Split(const Operand& a, const std::vector<int64_t>& sizes, int64_t axis);
// Values of one type along a new dimension at `axis` of the result.
Value Stack(const std::vector<Operand>& parts, int64_t axis);
// Each dimension repeats[d] times after itself: [2, 3] with {2, 1} -> [4, 3].
Value Tile(const Operand& a, const std::vector<int64_t>& repeats);
// Element i goes to i + shift, around the end.
Value Roll(const Operand& a, int64_t shift, int64_t axis);
Value Reverse(const Operand& a, std::vector<int64_t> axes);
// `count` elements of `axis`, every `step`-th from `start` on.
Value StridedSlice(const Operand& a, int64_t start, int64_t step, int64_t count, int64_t axis);
// Each element and those before it (after it, with `reverse`) along `axis`; with `exclusive`
// without the element itself.
Value CumSum(const Operand& a, int64_t axis, bool exclusive = false, bool reverse = false);

// --- by numbers (ops/gather.cc): ids i32 or i64, counted from 0; a number outside gives NaN, of
// scatters everywhere
// table [P..., V, S...] and ids [N...] -> [P..., N..., S...]: the table's elements ids along
// `axis`. A table that is split along `axis` may stay where it is.
Value Gather(const Operand& table, const Operand& ids, int64_t axis = 0);
// a with updates[P..., N..., S...] added where ids [N...] say along `axis`; equal ids add up.
Value ScatterAdd(const Operand& a, const Operand& ids, const Operand& updates, int64_t axis = 0);
// a with updates[P..., N..., S...] in the place of its own elements where ids [N...] say along
// `axis`. Of equal ids the last one counts (in row-major order), under every layout; the gradient
// goes to the updates that count, and to what is left of a.
Value ScatterSet(const Operand& a, const Operand& ids, const Operand& updates, int64_t axis = 0);
// a [P..., V, S...] and ids [P..., N, S...] -> [P..., N, S...]: along `axis`, each row of a has ids
// of its own.
//   [[10, 11, 12], [20, 21, 22]] with [[2, 0], [1, 1]] along 1 -> [[12, 10], [21, 21]]
Value TakeAlong(const Operand& a, const Operand& ids, int64_t axis);
// a with updates [P..., N, S...] added where ids [P..., N, S...] say along `axis`, each row's in
// that row; equal ids add up. A number outside gives NaN in its row.
Value AddAlong(const Operand& a, const Operand& ids, const Operand& updates, int64_t axis);
// updates [N..., S...] with ids [N...] -> [segments, S...]: the sum of each id's updates.
Value SegmentSum(const Operand& updates, const Operand& ids, int64_t segments);

// --- reductions (ops/reduce.cc); no axes: all of them; negative axes count from the end, each at
// most once. The result has a's dtype and the other dimensions, with `keep_dims` the reduced ones
// too, of size 1: [2, 3, 5] over {0, 2} -> [3], or [1, 3, 1]. No bool; the mean of floats alone.
Value ReduceSum(const Operand& a, std::vector<int64_t> axes = {}, bool keep_dims = false);
Value ReduceMean(const Operand& a, std::vector<int64_t> axes = {}, bool keep_dims = false);
Value ReduceMax(const Operand& a, std::vector<int64_t> axes = {}, bool keep_dims = false);
Value ReduceMin(const Operand& a, std::vector<int64_t> axes = {}, bool keep_dims = false);
// Made of others (ops/arrange.cc). Products are not of nothing; any and all are of bools;
// log sum e^a does not overflow.
Value ReduceProd(const Operand& a, std::vector<int64_t> axes = {}, bool keep_dims = false);
Value ReduceAny(const Operand& a, std::vector<int64_t> axes = {}, bool keep_dims = false);
Value ReduceAll(const Operand& a, std::vector<int64_t> axes = {}, bool keep_dims = false);
Value LogSumExp(const Operand& a, std::vector<int64_t> axes = {}, bool keep_dims = false);
// How many elements of `a` (floats) are not within [-limit, limit], as f32[]; a NaN is not.
Value CountBeyond(const Operand& a, double limit);
// The index along `axis`, i64, the first of equals; that dimension, not empty, is gone.
// The largest, or the least; a NaN before either.
Value ArgMax(const Operand& a, int64_t axis);
Value ArgMin(const Operand& a, int64_t axis);

// --- in order (ops/sort.cc): along `axis`, which a split layout gathers; of numbers. A NaN is
// larger than every number, 0 and -0 are equal, and of equal elements the one that stood first
// comes first: the same on every backend, also where the largest come first (`descending`).
//   [3, NaN, 1, 3] -> [1, 3, 3, NaN], from [2, 0, 3, 1]; descending [NaN, 3, 3, 1], from [1, 0, 3, 2]
Value Sort(const Operand& a, int64_t axis = -1, bool descending = false);
Value ArgSort(const Operand& a, int64_t axis = -1,
              bool descending = false);  // where they stood, i64
// The k largest along `axis`, the largest first, and where they stand (i64): [..., V, ...] -> twice
// [..., k, ...], k of 1 to V. The first index is ArgMax's. Gradients go to what was chosen.
struct Top {
  Value values, indices;
};
Top TopK(const Operand& a, int64_t k, int64_t axis = -1);

// --- losses and indices (ops/index.cc)
Value Softmax(const Operand& logits);  // over the last dimension
Value LogSoftmax(const Operand& logits);
// logits [..., C], labels [...] of i32 or i64 in [0, C) -> [...]. A label outside gives NaN in its
// row (as TensorFlow does on GPUs), so that the step's NaN check names it.
Value SparseSoftmaxCrossEntropy(const Operand& logits, const Operand& labels);
Value SoftmaxCrossEntropy(const Operand& logits, const Operand& labels);  // labels [..., C]
Value SigmoidCrossEntropy(const Operand& logits, const Operand& labels);  // element-wise
Value OneHot(const Operand& labels, int64_t depth, DType dtype = DType::kF32);

// --- sources (ops/random.cc): recorded in the current builder
using Where = std::source_location;
Value Fill(Dims dims, double value, DType dtype = DType::kF32, Where where = Where::current());
Value Zeros(Dims dims, DType dtype = DType::kF32, Where where = Where::current());
Value Ones(Dims dims, DType dtype = DType::kF32, Where where = Where::current());
Value Iota(Dims dims, int64_t axis, DType dtype = DType::kI64, Where where = Where::current());
// Philox 4x32-10, the same numbers as TensorFlow's stateless_* of the same seed, whatever the
// layout. Those of 16 bits are made of f32's; uniform ones are below `maxval` there too.
using Seed = std::array<int64_t, 2>;
Value StatelessUniform(Dims dims, Seed seed, double minval = 0, double maxval = 1,
                       DType dtype = DType::kF32, Where where = Where::current());
Value StatelessNormal(Dims dims, Seed seed, double mean = 0, double stddev = 1,
                      DType dtype = DType::kF32, Where where = Where::current());
Value StatelessTruncatedNormal(Dims dims, Seed seed, double mean = 0, double stddev = 1,
                               DType dtype = DType::kF32, Where where = Where::current());
// Keeps each element with probability 1 - rate and scales it by 1 / (1 - rate). `step` (i64 scalar)
// and the op's path key the numbers, so every step and layer draws its own.
Value Dropout(const Operand& a, double rate, int64_t seed, const Operand& step);

// --- state: records in the current builder
void Assign(const Variable& variable, const Operand& value);
void AssignAdd(const Variable& variable, const Operand& value);
void AssignSub(const Variable& variable, const Operand& value);

// --- layout: the value, which every plan holds in the given specs at this point (`{"batch",
// "unsharded"}`).
Value Relayout(const Operand& a, std::vector<std::string> specs);

}  // namespace meshtrain::program
