// Rows of windows, in one to three dimensions: strides, dilations and padding of every kind,
// windows with gaps between them, kernels of one tap, groups, and dimensions that meshes cut
// unevenly.
#include "runtime/program/registry.h"
#include "tests/support/op_cases/cases.h"

namespace meshtrain::program {
namespace {

using Ints = std::vector<int64_t>;

struct Call {
  std::string note;
  std::string elements, positions, kernel;  // `kernel`: its dimensions, or the sizes alone
  Ints sizes, strides, dilations, low, high;
};

Ints DimsOf(const std::string& text) { return TensorType::Parse(text)->dims; }

Attrs AttrsOf(const Call& c) {
  return {{"strides", c.strides}, {"dilations", c.dilations}, {"low", c.low}, {"high", c.high}};
}
Attrs With(Attrs attrs, const char* name, Ints value) {
  attrs.Set(name, std::move(value));
  return attrs;
}

void AddConv(std::vector<OpCase>& rows, const Call& c) {
  const Attrs attrs = AttrsOf(c);
  rows.push_back({.kind = "conv",
                  .operands = {c.elements, c.kernel},
                  .attrs = attrs,
                  .result = c.positions,
                  .note = c.note});
  rows.push_back({.kind = "conv_input_grad",
                  .operands = {c.positions, c.kernel},
                  .attrs = With(attrs, "dims", DimsOf(c.elements)),
                  .result = c.elements,
                  .note = c.note});
  rows.push_back({.kind = "conv_filter_grad",
                  .operands = {c.elements, c.positions},
                  .attrs = With(attrs, "dims", DimsOf(c.kernel)),
                  .result = c.kernel,
                  .note = c.note});
}

void AddPool(std::vector<OpCase>& rows, const Call& c) {
  const Attrs attrs = With(AttrsOf(c), "sizes", c.sizes);
  const auto add = [&](const char* kind, std::vector<std::string> operands, Attrs of,
                       const std::string& result) {
    rows.push_back({.kind = kind,
                    .operands = std::move(operands),
                    .attrs = std::move(of),
                    .result = result,
                    .note = c.note});
  };
  add("window_sum", {c.elements}, attrs, c.positions);
  add("window_sum_grad", {c.positions}, With(attrs, "dims", DimsOf(c.elements)), c.elements);
  add("window_max", {c.elements}, attrs, c.positions);
  add("window_max_grad", {c.elements, c.positions}, attrs, c.elements);
  add("window_max_pick", {c.elements, c.elements}, attrs, c.positions);
}

}  // namespace

std::vector<OpCase> WindowOpCases() {
  std::vector<OpCase> rows;
  AddConv(rows, {"same", "f64[2,6,2]", "f64[2,6,3]", "f64[3,2,3]", {}, {1}, {1}, {1}, {1}});
  AddConv(rows, {"strided", "f64[1,7,1]", "f64[1,4,2]", "f64[3,1,2]", {}, {2}, {1}, {1}, {1}});
  AddConv(rows, {"dilated", "f64[1,9,1]", "f64[1,3,1]", "f64[2,1,1]", {}, {3}, {2}, {1}, {0}});
  AddConv(rows, {"gaps", "f64[2,8,1]", "f64[2,3,1]", "f64[1,1,1]", {}, {3}, {1}, {0}, {0}});
  AddConv(rows, {"groups", "f64[1,4,4]", "f64[1,3,6]", "f64[2,2,6]", {}, {1}, {1}, {0}, {0}});
  AddConv(rows, {"depthwise", "f64[2,3,3]", "f64[2,3,3]", "f64[2,1,3]", {}, {1}, {1}, {0}, {1}});
  AddConv(rows, {"one tap", "f64[2,5,3]", "f64[2,5,2]", "f64[1,3,2]", {}, {1}, {1}, {0}, {0}});
  AddConv(rows, {"planes",
                 "f64[2,5,4,1]",
                 "f64[2,3,4,2]",
                 "f64[3,2,1,2]",
                 {},
                 {2, 1},
                 {1, 1},
                 {1, 0},
                 {1, 1}});
  AddConv(rows, {"volumes",
                 "f64[1,3,2,4,1]",
                 "f64[1,3,1,2,1]",
                 "f64[3,2,2,1,1]",
                 {},
                 {1, 1, 2},
                 {1, 1, 1},
                 {1, 0, 0},
                 {1, 0, 0}});
  AddPool(rows, {"halves", "f64[2,8,2]", "f64[2,4,2]", "", {2}, {2}, {1}, {0}, {0}});
  AddPool(rows, {"overlap", "f64[1,7,1]", "f64[1,4,1]", "", {3}, {2}, {1}, {1}, {1}});
  AddPool(rows, {"gaps", "f64[2,7,1]", "f64[2,3,1]", "", {1}, {3}, {1}, {0}, {0}});
  AddPool(rows, {"dilated", "f64[1,6,3]", "f64[1,4,3]", "", {2}, {1}, {2}, {0}, {0}});
  AddPool(rows,
          {"planes", "f64[1,5,4,1]", "f64[1,3,2,1]", "", {2, 3}, {2, 2}, {1, 1}, {0, 1}, {1, 1}});
  return rows;
}

}  // namespace meshtrain::program
