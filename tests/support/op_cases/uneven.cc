// Rows of shapes that meshes of two, three and four devices cut unevenly, for the prover
// (tests/contract/prover.h) first of all. Types of results are those that the registry infers.
#include "tests/support/op_cases/cases.h"

namespace meshtrain::program {
namespace {

using Ints = std::vector<int64_t>;
using Doubles = std::vector<double>;
using Operands = std::vector<std::string>;
using namespace std::string_literals;

using Rows = std::vector<OpCase>;

void Add(Rows& rows, const std::string& kind, const std::string& note, Operands operands,
         Attrs attrs = {}, Draw draw = Draw::kAny) {
  rows.push_back({.kind = kind,
                  .operands = std::move(operands),
                  .attrs = std::move(attrs),
                  .draw = draw,
                  .note = note});
}

// Alike, broadcast along each dimension, and with a scalar.
void AddBinary(Rows& rows, const std::string& kind, const std::string& dtype,
               Draw draw = Draw::kAny) {
  Add(rows, kind, "", {dtype + "[5,4]", dtype + "[5,4]"}, {}, draw);
  Add(rows, kind, "row", {dtype + "[5,3]", dtype + "[3]"}, {}, draw);
  Add(rows, kind, "column", {dtype + "[4,1]", dtype + "[4,3]"}, {}, draw);
  Add(rows, kind, "scalar", {dtype + "[]", dtype + "[6]"}, {}, draw);
}

void AddElementwise(Rows& rows) {
  for (const char* kind : {"add", "sub", "mul", "maximum", "minimum", "less", "greater"}) {
    AddBinary(rows, kind, "f64");
  }
  for (const char* kind : {"div", "pow"}) AddBinary(rows, kind, "f64", Draw::kPositive);
  for (const char* kind : {"equal", "not_equal", "less_equal", "greater_equal"}) {
    AddBinary(rows, kind, "i32");
  }
  for (const char* kind : {"logical_and", "logical_or"}) AddBinary(rows, kind, "bool");
  Add(rows, "sigmoid_cross_entropy", "", {"f64[5,4]", "f64[5,4]"});
  for (const char* kind : {"add", "sub", "mul", "maximum", "minimum"}) {
    Add(rows, kind, "of integers", {"i32[5,4]", "i32[4]"});
  }
  for (const char* kind : {"neg", "abs", "sign", "square"}) {
    Add(rows, kind, "of integers", {"i32[5,4]"});
  }
  for (const char* kind : {"add", "mul"}) {
    Add(rows, kind, "one value twice", {"f64[5]", "f64[5]"});
    rows.back().twice = true;
  }
  for (const char* kind : {"neg", "abs", "sign", "floor", "square", "exp", "expm1", "sin", "cos",
                           "softplus", "erf", "tanh", "sigmoid", "relu", "stop_gradient"}) {
    Add(rows, kind, "", {"f64[5,4]"});
  }
  for (const char* kind : {"sqrt", "rsqrt", "log", "log1p"}) {
    Add(rows, kind, "", {"f64[5,4]"}, {}, Draw::kPositive);
  }
  Add(rows, "gelu", "", {"f64[5,4]"});
  Add(rows, "gelu", "approximate", {"f64[5,4]"}, {{"approximate", true}});
  Add(rows, "logical_not", "", {"bool[5,4]"});
  Add(rows, "cast", "from integers", {"i32[5,4]"}, {{"dtype", "f64"s}});
  Add(rows, "cast", "to integers", {"f64[5,4]"}, {{"dtype", "i32"s}});
  Add(rows, "cast", "to f32", {"f64[5,4]"}, {{"dtype", "f32"s}});
  Add(rows, "cast", "to bool", {"f64[5,4]"}, {{"dtype", "bool"s}});
  Add(rows, "cast", "from bool", {"bool[5,4]"}, {{"dtype", "f64"s}});
  Add(rows, "cast", "between integers", {"i32[5,4]"}, {{"dtype", "u8"s}});
  Add(rows, "select", "", {"bool[5,3]", "f64[5,3]", "f64[5,3]"});
  Add(rows, "select", "broadcast", {"bool[5,1]", "f64[3]", "f64[]"});
  Add(rows, "select", "of integers", {"bool[5,4]", "i32[5,4]", "i32[]"});
}

void AddLinear(Rows& rows) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      Add(rows, "matmul", ""s + (ta ? "t" : "n") + (tb ? "t" : "n"),
          {ta ? "f64[6,5]" : "f64[5,6]", tb ? "f64[4,6]" : "f64[6,4]"},
          {{"transpose_a", ta}, {"transpose_b", tb}});
    }
  }
  Add(rows, "matmul", "batched", {"f64[3,2,5]", "f64[3,5,4]"});
  Add(rows, "matmul", "batched left", {"f64[3,2,5]", "f64[5,4]"});
  Add(rows, "matmul", "batched right", {"f64[2,5]", "f64[3,4,5]"}, {{"transpose_b", true}});
  Add(rows, "matmul", "of all rows", {"f64[3,5,2]", "f64[3,5,4]"},
      {{"transpose_a", true}, {"sum_batch", true}});
  Add(rows, "matmul", "of columns and rows", {"f64[5,1,4]", "f64[5,4,1]"});
  Add(rows, "matmul", "of rows and columns", {"f64[5,4,1]", "f64[5,1,4]"});
  Add(rows, "matmul", "one value twice", {"f64[4,4]", "f64[4,4]"});
  rows.back().twice = true;
}

void AddShape(Rows& rows) {
  const auto reshape = [&](const std::string& note, const std::string& from, Dims to) {
    Add(rows, "reshape", note, {from}, {{"dims", std::move(to)}});
  };
  reshape("merge", "f64[4,6]", {24});
  reshape("merge uneven", "f64[3,5]", {15});
  reshape("split", "f64[24]", {4, 6});
  reshape("regroup", "f64[4,6]", {8, 3});
  reshape("nothing in common", "f64[2,3]", {3, 2});
  reshape("keep the first", "f64[5,2,3]", {5, 6});
  reshape("keep the last", "f64[2,3,5]", {6, 5});
  reshape("ones", "f64[5,4]", {1, 5, 1, 4});
  reshape("to a scalar", "f64[1,1]", {});
  Add(rows, "transpose", "", {"f64[5,4]"}, {{"permutation", Ints{1, 0}}});
  Add(rows, "transpose", "of three", {"f64[2,3,5]"}, {{"permutation", Ints{2, 0, 1}}});
  Add(rows, "broadcast_to", "", {"f64[5,1]"}, {{"dims", Ints{3, 5, 4}}});
  Add(rows, "broadcast_to", "scalar", {"f64[]"}, {{"dims", Ints{5}}});
  Add(rows, "concat", "", {"f64[5,2]", "f64[5,3]"}, {{"axis", int64_t{1}}});
  Add(rows, "concat", "of three", {"f64[2,4]", "f64[1,4]", "f64[3,4]"}, {{"axis", int64_t{0}}});
  Add(rows, "slice", "", {"f64[5,6]"}, {{"starts", Ints{0, 1}}, {"sizes", Ints{5, 4}}});
  Add(rows, "slice", "all of a dimension", {"f64[5,6]"},
      {{"starts", Ints{0, 1}}, {"sizes", Ints{-1, 4}}});
  Add(rows, "slice", "of both", {"f64[5,6]"}, {{"starts", Ints{2, 0}}, {"sizes", Ints{3, 3}}});
  Add(rows, "pad", "", {"f64[5,3]"},
      {{"before", Ints{0, 1}}, {"after", Ints{0, 2}}, {"value", 7.0}});
  Add(rows, "pad", "of both", {"f64[5,3]"},
      {{"before", Ints{1, 0}}, {"after", Ints{0, 2}}, {"value", 3.5}});
  Add(rows, "concat", "of integers", {"i32[5,1]", "i32[5,4]"}, {{"axis", int64_t{1}}});
  Add(rows, "concat", "of bools", {"bool[3]", "bool[4]"}, {{"axis", int64_t{0}}});
  Add(rows, "slice", "far away", {"f64[9,2]"}, {{"starts", Ints{7, 0}}, {"sizes", Ints{2, -1}}});
  Add(rows, "slice", "of one", {"f64[5,4]"}, {{"starts", Ints{4, 0}}, {"sizes", Ints{1, 3}}});
  Add(rows, "pad", "of one", {"i32[1,4]"},
      {{"before", Ints{3, 0}}, {"after", Ints{1, 0}}, {"value", 7.0}});
  Add(rows, "reverse", "", {"f64[5,4]"}, {{"axes", Ints{0}}});
  Add(rows, "reverse", "of both", {"i32[5,3]"}, {{"axes", Ints{0, 1}}});
  // A wish about places cannot name an axis that every mesh of the prover has not; `a` is on all
  // of them.
  Add(rows, "relayout", "", {"f64[5,4]"}, {{"specs", "{a, *}"s}});
  Add(rows, "relayout", "of columns", {"f64[5,4]"}, {{"specs", "{*, a}"s}});
}

void AddReduce(Rows& rows) {
  for (const std::string kind : {"reduce_sum", "reduce_max", "reduce_min"}) {
    const auto add = [&](const std::string& note, const std::string& operand, Ints axes,
                         bool keep = false, Draw draw = Draw::kAny) {
      Add(rows, kind, note, {operand}, {{"axes", std::move(axes)}, {"keep_dims", keep}}, draw);
    };
    add("rows", "f64[5,4]", {0});
    add("columns kept", "f64[5,6]", {1}, true);
    add("all", "f64[5,3]", {0, 1});
    add("none", "f64[1,4]", {0});
    if (kind == "reduce_sum") {
      add("of integers", "i32[5,4]", {0});
      continue;
    }
    for (const char* dtype : {"i32", "i64", "u8", "f32"}) {
      add("of "s + dtype, dtype + "[5,2]"s, {0});
    }
    // All below 0, all above: a pad of 0 would win.
    add("of negatives", "f64[5,2]", {0}, false, Draw::kNegative);
    add("of positives", "f64[5,2]", {0}, false, Draw::kPositive);
  }
  Add(rows, "argmax", "", {"f64[5,4]"}, {{"axis", int64_t{1}}});
  Add(rows, "argmax", "of integers", {"i32[5,4]"}, {{"axis", int64_t{1}}});
  Add(rows, "argmax", "of rows", {"f64[5,4]"}, {{"axis", int64_t{0}}});
  Add(rows, "count_beyond", "", {"f64[5,4]"}, {{"limit", 0.25}});
}

void AddIndex(Rows& rows) {
  Add(rows, "softmax", "", {"f64[5,3]"});
  Add(rows, "log_softmax", "", {"f64[5,3]"});
  Add(rows, "sparse_softmax_cross_entropy", "", {"f64[5,3]", "i64[5]"});
  Add(rows, "sparse_softmax_cross_entropy", "sequences", {"f64[3,2,3]", "i32[3,2]"});
  Add(rows, "sparse_softmax_cross_entropy_grad", "", {"f64[5,3]", "i64[5]", "f64[5]"});
  Add(rows, "softmax_cross_entropy", "", {"f64[5,3]", "f64[5,3]"});
  Add(rows, "softmax", "of many classes", {"f64[2,7]"});
  Add(rows, "sparse_softmax_cross_entropy", "of many classes", {"f64[3,7]", "i32[3]"});
  Add(rows, "one_hot", "", {"i64[5]"}, {{"depth", int64_t{3}}, {"dtype", "f64"s}});
  Add(rows, "one_hot", "beyond its depth", {"i32[5,4]"},
      {{"depth", int64_t{2}}, {"dtype", "i32"s}});
}

void AddGather(Rows& rows) {
  Add(rows, "gather", "", {"f64[5,3]", "i64[4]"}, {{"axis", int64_t{0}}});
  Add(rows, "gather", "of columns", {"f64[4,5]", "i32[3]"}, {{"axis", int64_t{1}}});
  Add(rows, "gather", "sequences", {"f64[7,2]", "i32[3,2]"}, {{"axis", int64_t{0}}});
  Add(rows, "gather", "of one", {"f64[5]", "i64[]"}, {{"axis", int64_t{0}}});
  Add(rows, "scatter_add", "", {"i64[4]", "f64[4,3]"},
      {{"axis", int64_t{0}}, {"dims", Ints{5, 3}}});
  Add(rows, "scatter_add", "of columns", {"i32[3]", "f64[4,3]"},
      {{"axis", int64_t{1}}, {"dims", Ints{4, 5}}});
  Add(rows, "scatter_add", "sequences", {"i32[3,5]", "f64[3,5,2]"},
      {{"axis", int64_t{0}}, {"dims", Ints{7, 2}}});
}

void AddSources(Rows& rows) {
  Add(rows, "constant", "", {}, {{"value", 2.5}, {"dtype", "f64"s}});
  Add(rows, "constant", "of many", {},
      {{"values", Doubles{1, 2, 3, 4, 5}}, {"dims", Ints{5}}, {"dtype", "f64"s}});
  Add(rows, "constant", "one in many places", {},
      {{"value", 3.0}, {"dims", Ints{5, 2}}, {"dtype", "f64"s}});
  Add(rows, "fill", "", {}, {{"value", 1.5}, {"dims", Ints{5, 4}}, {"dtype", "f64"s}});
  Add(rows, "iota", "", {}, {{"dims", Ints{5, 4}}, {"axis", int64_t{0}}, {"dtype", "i64"s}});
  Add(rows, "iota", "of columns", {},
      {{"dims", Ints{5, 4}}, {"axis", int64_t{1}}, {"dtype", "f64"s}});
  Add(rows, "iota", "of f32", {}, {{"dims", Ints{5}}, {"axis", int64_t{0}}, {"dtype", "f32"s}});
  for (const char* dtype : {"f32", "f64"}) {
    const auto random = [&](const char* kind, const char* first, double a, const char* second,
                            double b) {
      Add(rows, kind, "of "s + dtype, {},
          {{"dims", Ints{5, 3}},
           {"dtype", std::string(dtype)},
           {"seed", Ints{22, 23}},
           {first, a},
           {second, b}});
    };
    random("stateless_uniform", "minval", -1, "maxval", 2);
    random("stateless_normal", "mean", 1, "stddev", 2);
    random("stateless_truncated_normal", "mean", 0, "stddev", 1);
  }
  Add(rows, "dropout_mask", "", {"i64[]"},
      {{"dims", Ints{5, 4}}, {"dtype", "f64"s}, {"rate", 0.4}, {"seed", int64_t{7}}});
}

}  // namespace

std::vector<OpCase> UnevenOpCases() {
  Rows rows;
  AddElementwise(rows);
  AddLinear(rows);
  AddShape(rows);
  AddReduce(rows);
  AddIndex(rows);
  AddGather(rows);
  AddSources(rows);
  return rows;
}

}  // namespace meshtrain::program
