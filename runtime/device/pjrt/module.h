// StableHLO's text, line by line: the instructions that the rows of ops (ops/rows.h) are made of.
// Text of StableHLO 1.13 and older, which every plugin since reads. Pure.
//
//   Node y = m.Binary("add", m.Broadcast(a, dims), b);
//     %3 = stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
//     %4 = stablehlo.add %3, %b : tensor<8x4xf32>
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/mesh/shape.h"

namespace meshtrain::device::pjrt {

using mesh::Dims;

// "f32", "bf16", "i64", "ui8", "i1".
std::string ElementOf(mesh::DType dtype);
bool IsFloatElement(std::string_view element);
bool IsHalfElement(std::string_view element);  // a float of 16 bits

// A value of the text.
struct Node {
  std::string name;     // "%12"
  std::string element;  // "f32"
  Dims dims;
  std::string type() const;  // "tensor<8x4xf32>"
  int rank() const { return static_cast<int>(dims.size()); }
};

class Module {
 public:
  // --- literals. A number is written so that it is read back bit for bit.
  Node Splat(const std::string& element, const Dims& dims, double value);
  Node Whole(const std::string& element, const Dims& dims, uint64_t value);  // of an integer type
  Node Literal(const std::string& element, const Dims& dims, const std::vector<double>& values);
  Node Integers(const std::string& element,
                const std::vector<int64_t>& values);  // of one dimension
  Node Like(const Node& a, double value) { return Splat(a.element, a.dims, value); }

  // --- one value from one or more of the same type
  Node Unary(std::string_view op, const Node& a);
  Node Binary(std::string_view op, const Node& a, const Node& b);
  Node Compare(std::string_view direction, const Node& a, const Node& b);  // "LT"; of i1
  Node IsFinite(const Node& a);                                            // of i1
  Node Select(const Node& condition, const Node& a, const Node& b);
  Node Convert(const Node& a, const std::string& element);
  Node Bits(const Node& a, const std::string& element);  // the same bits, of a type as wide
  // `a`, of which nothing is known that is known of `a`.
  Node Barrier(const Node& a);

  // --- shapes
  Node BroadcastInDim(const Node& a, const Dims& dims, const std::vector<int64_t>& mapping);
  // As numpy stretches: dimensions of 1, and leading ones that are not there.
  Node Broadcast(const Node& a, const Dims& dims);
  Node Reshape(const Node& a, const Dims& dims);
  Node Transpose(const Node& a, const std::vector<int64_t>& permutation);
  Node Slice(const Node& a, const Dims& starts, const Dims& sizes);
  // `dims` elements from `starts` on, every `steps`-th.
  Node StridedSlice(const Node& a, const Dims& starts, const Dims& steps, const Dims& dims);
  Node Pad(const Node& a, const Node& value, const Dims& before, const Dims& after);
  // With so many between two elements, too.
  Node PadBetween(const Node& a, const Node& value, const Dims& before, const Dims& after,
                  const Dims& between);
  Node Concat(const std::vector<Node>& parts, int64_t axis);
  Node Iota(const std::string& element, const Dims& dims, int64_t axis);
  // `start` is a scalar; what would reach beyond the end is moved inside.
  Node DynamicSlice(const Node& a, int64_t dim, const Node& start, int64_t size);

  // [P..., V, S...] by ids [N...] (i64) along `axis`: [P..., N..., S...]. A number outside is moved
  // inside.
  Node Gather(const Node& a, const Node& ids, int64_t axis);
  // Updates [P..., N..., S...] onto `a` by `op` (add, maximum) where the ids say; those outside are
  // left out.
  Node Scatter(std::string_view op, const Node& a, const Node& ids, const Node& updates,
               int64_t axis);
  // The same with ids [P..., N, S...], of which each row along `axis` has its own: the results, and
  // the updates, have their dimensions.
  Node GatherAlong(const Node& a, const Node& ids, int64_t axis);
  Node ScatterAlong(std::string_view op, const Node& a, const Node& ids, const Node& updates,
                    int64_t axis);
  // Values of the same dimensions in one order along `axis`: `before` says of two elements of the
  // first whether the one comes before the other. Equal ones stay as they were.
  std::vector<Node> Sort(const std::vector<Node>& values, int64_t axis,
                         const std::function<Node(Module&, const Node&, const Node&)>& before);
  Node Reverse(const Node& a, const std::vector<int64_t>& axes);

  // `op` is add, maximum, minimum, and, or; `first` its neutral element. keep: reduced dimensions
  // stay, as 1.
  Node Reduce(std::string_view op, const Node& a, const std::vector<int64_t>& axes,
              const Node& first, bool keep = false);
  // [batch.., m, k] x [batch.., k, n], either operand's last two dimensions the other way round.
  Node Dot(const Node& a, const Node& b, int batch, bool transpose_a, bool transpose_b);
  // [N, S..., C] under a kernel [K..., C/groups, F]. of_filter: [N, S..., C] under [N, O..., F],
  // the first dimensions summed over and C the batch, to [K..., C/groups, F].
  struct Convolution {
    std::vector<int64_t> strides, left_dilations, right_dilations;
    std::vector<std::pair<int64_t, int64_t>> pads;
    int64_t feature_groups = 1, batch_groups = 1;
    bool reversed = false;  // the kernel, in every spatial dimension
    bool of_filter = false;
  };
  Node Convolve(const Node& a, const Node& b, const Convolution& c, const Dims& result);
  // What `then` gives where `condition` is true, else what `otherwise` does, which alone then runs;
  // both may use any value.
  Node If(const Node& condition, const std::function<Node(Module&)>& then,
          const std::function<Node(Module&)>& otherwise);
  // Runs `body` while `condition` gives true; both get the loop's values, and use no others.
  std::vector<Node> While(
      const std::vector<Node>& initial,
      const std::function<Node(Module&, const std::vector<Node>&)>& condition,
      const std::function<std::vector<Node>(Module&, const std::vector<Node>&)>& body);

  // --- between devices; `groups` are ranks, the members of each in order
  using Groups = std::vector<std::vector<int64_t>>;
  Node Rank();  // ui32[]
  std::vector<Node> AllReduce(std::string_view op, const std::vector<Node>& values,
                              const Groups& groups);
  Node AllGather(const Node& a, int64_t dim, const Groups& groups);
  Node ReduceScatter(std::string_view op, const Node& a, int64_t dim, const Groups& groups);
  Node AllToAll(const Node& a, int64_t split, int64_t concat, const Groups& groups);
  // pairs: {sender, receiver}; who receives nothing gets zeros.
  Node Permute(const Node& a, const Groups& pairs);

  // A line of any kind that makes a value: "%7 = " + text.
  Node Line(const std::string& text, std::string element, Dims dims);
  void Raw(const std::string& line) { text_ += indent_ + line + "\n"; }
  const std::string& text() const { return text_; }

 private:
  // What `body` writes, one step further in, and that its region returns what it gives.
  std::vector<Node> Inside(const std::function<std::vector<Node>()>& body);
  std::string Fresh() { return "%" + std::to_string(next_++); }
  std::string Region(std::string_view op, const std::string& scalar);

  std::string text_;
  std::string indent_ = "    ";
  int next_ = 0;
};

}  // namespace meshtrain::device::pjrt
