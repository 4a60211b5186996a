// The prover's table: one row or more for each op.
#include "runtime/program/ops.h"
#include "tests/contract/prover.h"

namespace meshtrain::prover {
namespace {

using program::Dims;
using program::DType;
using program::Operand;
using program::TensorType;
using program::Value;
using In = std::span<const Value>;

CaseInput Any(Dims dims) { return {TensorType{DType::kF64, std::move(dims)}, Numbers::kAny}; }
CaseInput Positive(Dims dims) {
  return {TensorType{DType::kF64, std::move(dims)}, Numbers::kPositive};
}
CaseInput Bools(Dims dims) { return {TensorType{DType::kBool, std::move(dims)}, Numbers::kBool}; }
CaseInput Labels(Dims dims, DType dtype = DType::kI64) {
  return {TensorType{dtype, std::move(dims)}, Numbers::kLabels};
}
CaseInput Ints(Dims dims) { return {TensorType{DType::kI32, std::move(dims)}, Numbers::kLabels}; }

using Unary = Value (*)(const Operand&);
using Binary = Value (*)(const Operand&, const Operand&);

// Alike, broadcast along each dimension, and with a scalar.
void AddBinary(std::vector<Case>& cases, const std::string& kind, Binary f,
               CaseInput (*input)(Dims)) {
  const auto record = [f](In x) { return f(x[0], x[1]); };
  cases.push_back({kind, {input({5, 4}), input({5, 4})}, record});
  cases.push_back({kind + ", row", {input({5, 3}), input({3})}, record});
  cases.push_back({kind + ", column", {input({4, 1}), input({4, 3})}, record});
  cases.push_back({kind + ", scalar", {input({}), input({6})}, record});
}

void AddElementwise(std::vector<Case>& cases) {
  AddBinary(cases, "add", program::Add, Any);
  AddBinary(cases, "sub", program::Sub, Any);
  AddBinary(cases, "mul", program::Mul, Any);
  AddBinary(cases, "div", program::Div, Positive);
  AddBinary(cases, "pow", program::Pow, Positive);
  AddBinary(cases, "maximum", program::Maximum, Any);
  AddBinary(cases, "minimum", program::Minimum, Any);
  AddBinary(cases, "equal", program::Equal, Ints);
  AddBinary(cases, "not_equal", program::NotEqual, Ints);
  AddBinary(cases, "less", program::Less, Any);
  AddBinary(cases, "less_equal", program::LessEqual, Ints);
  AddBinary(cases, "greater", program::Greater, Any);
  AddBinary(cases, "greater_equal", program::GreaterEqual, Ints);
  AddBinary(cases, "logical_and", program::LogicalAnd, Bools);
  AddBinary(cases, "logical_or", program::LogicalOr, Bools);
  AddBinary(
      cases, "sigmoid_cross_entropy",
      [](const Operand& a, const Operand& b) {
        // Its operands have one shape.
        return program::SigmoidCrossEntropy(program::Add(a, program::Mul(b, 0.0)),
                                            program::Add(b, program::Mul(a, 0.0)));
      },
      Any);
  cases.push_back({"add, one value twice", {Any({5})}, [](In x) { return x[0] + x[0]; }});
  cases.push_back({"mul, one value twice", {Any({5})}, [](In x) { return x[0] * x[0]; }});
  cases.push_back({"add, of integers", {Ints({5}), Ints({5})}, [](In x) { return x[0] + x[1]; }});

  const std::vector<std::pair<std::string, Unary>> of_any = {
      {"neg", program::Neg},
      {"abs", program::Abs},
      {"sign", program::Sign},
      {"floor", program::Floor},
      {"square", program::Square},
      {"exp", program::Exp},
      {"erf", program::Erf},
      {"tanh", program::Tanh},
      {"sigmoid", program::Sigmoid},
      {"relu", program::Relu},
      {"stop_gradient", program::StopGradient}};
  for (const auto& [kind, f] : of_any) {
    cases.push_back({kind, {Any({5, 4})}, [f = f](In x) { return f(x[0]); }});
  }
  const std::vector<std::pair<std::string, Unary>> of_positive = {{"sqrt", program::Sqrt},
                                                                  {"rsqrt", program::Rsqrt},
                                                                  {"log", program::Log},
                                                                  {"log1p", program::Log1p}};
  for (const auto& [kind, f] : of_positive) {
    cases.push_back({kind, {Positive({5, 4})}, [f = f](In x) { return f(x[0]); }});
  }
  cases.push_back({"gelu", {Any({5, 4})}, [](In x) { return program::Gelu(x[0]); }});
  cases.push_back(
      {"gelu, approximate", {Any({5, 4})}, [](In x) { return program::Gelu(x[0], true); }});
  cases.push_back({"logical_not", {Bools({5, 4})}, [](In x) { return program::LogicalNot(x[0]); }});
  cases.push_back({"cast, from integers", {Ints({5, 4})}, [](In x) {
                     return program::Cast(x[0], DType::kF64);
                   }});
  cases.push_back(
      {"cast, from floats", {Any({5, 4})}, [](In x) { return program::Cast(x[0], DType::kI32); }});
  cases.push_back({"cast, between floats", {Any({5, 4})}, [](In x) {
                     return program::Cast(program::Cast(x[0], DType::kF32), DType::kF64);
                   }});
  cases.push_back({"select", {Bools({5, 3}), Any({5, 3}), Any({5, 3})}, [](In x) {
                     return program::Select(x[0], x[1], x[2]);
                   }});
  cases.push_back({"select, broadcast", {Bools({5, 1}), Any({3}), Any({})}, [](In x) {
                     return program::Select(x[0], x[1], x[2]);
                   }});
}

void AddLinear(std::vector<Case>& cases) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const std::string name = std::string("matmul, ") + (ta ? "t" : "n") + (tb ? "t" : "n");
      cases.push_back({name,
                       {Any(ta ? Dims{6, 5} : Dims{5, 6}), Any(tb ? Dims{4, 6} : Dims{6, 4})},
                       [=](In x) { return program::MatMul(x[0], x[1], ta, tb); }});
    }
  }
  cases.push_back({"matmul, batched", {Any({3, 2, 5}), Any({3, 5, 4})}, [](In x) {
                     return program::MatMul(x[0], x[1]);
                   }});
  cases.push_back({"matmul, batched left", {Any({3, 2, 5}), Any({5, 4})}, [](In x) {
                     return program::MatMul(x[0], x[1]);
                   }});
  cases.push_back({"matmul, batched right", {Any({2, 5}), Any({3, 4, 5})}, [](In x) {
                     return program::MatMul(x[0], x[1], false, true);
                   }});
  cases.push_back(
      {"matmul, one value twice", {Any({4, 4})}, [](In x) { return program::MatMul(x[0], x[0]); }});
}

void AddShape(std::vector<Case>& cases) {
  const auto reshape = [&](const std::string& name, Dims from, Dims to) {
    cases.push_back({"reshape, " + name, {Any(std::move(from))}, [to](In x) {
                       return program::Reshape(x[0], to);
                     }});
  };
  reshape("merge", {4, 6}, {24});
  reshape("merge uneven", {3, 5}, {15});
  reshape("split", {24}, {4, 6});
  reshape("regroup", {4, 6}, {8, 3});
  reshape("nothing in common", {2, 3}, {3, 2});
  reshape("keep the first", {5, 2, 3}, {5, 6});
  reshape("keep the last", {2, 3, 5}, {6, 5});
  reshape("ones", {5, 4}, {1, 5, 1, 4});
  reshape("to a scalar", {1, 1}, {});
  cases.push_back({"transpose", {Any({5, 4})}, [](In x) {
                     return program::Transpose(x[0], {1, 0});
                   }});
  cases.push_back({"transpose, of three", {Any({2, 3, 5})}, [](In x) {
                     return program::Transpose(x[0], {2, 0, 1});
                   }});
  cases.push_back({"broadcast_to", {Any({5, 1})}, [](In x) {
                     return program::BroadcastTo(x[0], {3, 5, 4});
                   }});
  cases.push_back(
      {"broadcast_to, scalar", {Any({})}, [](In x) { return program::BroadcastTo(x[0], {5}); }});
  cases.push_back({"concat", {Any({5, 2}), Any({5, 3})}, [](In x) {
                     return program::Concat({Operand(x[0]), Operand(x[1])}, 1);
                   }});
  cases.push_back({"concat, of three", {Any({2, 4}), Any({1, 4}), Any({3, 4})}, [](In x) {
                     return program::Concat({Operand(x[0]), Operand(x[1]), Operand(x[2])}, 0);
                   }});
  cases.push_back({"slice", {Any({5, 6})}, [](In x) {
                     return program::Slice(x[0], {0, 1}, {5, 4});
                   }});
  cases.push_back({"slice, of both", {Any({5, 6})}, [](In x) {
                     return program::Slice(x[0], {2, 0}, {3, 3});
                   }});
  cases.push_back({"pad", {Any({5, 3})}, [](In x) {
                     return program::Pad(x[0], {0, 1}, {0, 2}, 7);
                   }});
  // A wish about places cannot name an axis that every mesh of the prover has; `a` is on all of
  // them.
  cases.push_back({"relayout", {Any({5, 4})}, [](In x) {
                     return program::Relayout(x[0], {"a", "unsharded"});
                   }});
  cases.push_back(
      {"relayout, used", {Any({5, 4})}, [](In x) {
         return program::Relu(program::Relayout(program::Neg(x[0]), {"unsharded", "a"}));
       }});
}

void AddReduce(std::vector<Case>& cases) {
  using Reduce = Value (*)(const Operand&, std::vector<int64_t>, bool);
  const std::vector<std::pair<std::string, Reduce>> reductions = {
      {"reduce_sum", program::ReduceSum},
      {"reduce_max", program::ReduceMax},
      {"reduce_min", program::ReduceMin}};
  for (const auto& [kind, f] : reductions) {
    cases.push_back(
        {kind + ", rows", {Any({5, 4})}, [f = f](In x) { return f(x[0], {0}, false); }});
    cases.push_back(
        {kind + ", columns kept", {Any({5, 6})}, [f = f](In x) { return f(x[0], {1}, true); }});
    cases.push_back({kind + ", all", {Any({5, 3})}, [f = f](In x) { return f(x[0], {}, false); }});
    cases.push_back(
        {kind + ", none", {Any({1, 4})}, [f = f](In x) { return f(x[0], {0}, false); }});
  }
  cases.push_back({"reduce_sum, of a mean", {Any({5, 3})}, [](In x) {
                     return program::ReduceMean(x[0], {0});
                   }});
  for (const DType dtype : {DType::kI32, DType::kI64, DType::kU8, DType::kF32}) {
    const std::string name = std::string(", of ") + std::string(mesh::DTypeName(dtype));
    const CaseInput input{TensorType{dtype, {5, 2}},
                          dtype == DType::kF32 ? Numbers::kAny : Numbers::kLabels};
    cases.push_back(
        {"reduce_max" + name, {input}, [](In x) { return program::ReduceMax(x[0], {0}); }});
    cases.push_back(
        {"reduce_min" + name, {input}, [](In x) { return program::ReduceMin(x[0], {0}); }});
  }
  // All below 0, all above: a pad of 0 would win.
  cases.push_back({"reduce_max, of negatives", {Positive({5, 2})}, [](In x) {
                     return program::ReduceMax(program::Neg(x[0]), {0});
                   }});
  cases.push_back({"reduce_min, of positives", {Positive({5, 2})}, [](In x) {
                     return program::ReduceMin(x[0], {0});
                   }});
  cases.push_back(
      {"count_beyond", {Any({5, 4})}, [](In x) { return program::CountBeyond(x[0], 0.25); }});
  cases.push_back({"argmax", {Any({5, 4})}, [](In x) { return program::ArgMax(x[0], 1); }});
  cases.push_back(
      {"argmax, of rows", {Any({5, 4})}, [](In x) { return program::ArgMax(x[0], 0); }});
}

void AddIndex(std::vector<Case>& cases) {
  cases.push_back({"softmax", {Any({5, 3})}, [](In x) { return program::Softmax(x[0]); }});
  cases.push_back({"log_softmax", {Any({5, 3})}, [](In x) { return program::LogSoftmax(x[0]); }});
  cases.push_back({"sparse_softmax_cross_entropy", {Any({5, 3}), Labels({5})}, [](In x) {
                     return program::SparseSoftmaxCrossEntropy(x[0], x[1]);
                   }});
  cases.push_back({"sparse_softmax_cross_entropy, sequences",
                   {Any({3, 2, 3}), Labels({3, 2}, DType::kI32)},
                   [](In x) { return program::SparseSoftmaxCrossEntropy(x[0], x[1]); }});
  cases.push_back(
      {"sparse_softmax_cross_entropy_grad", {Any({5, 3}), Labels({5}), Any({5})}, [](In x) {
         return x[0].builder()->Append1("sparse_softmax_cross_entropy_grad", {x[0], x[1], x[2]});
       }});
  cases.push_back({"softmax_cross_entropy", {Any({5, 3}), Any({5, 3})}, [](In x) {
                     return program::SoftmaxCrossEntropy(x[0], x[1]);
                   }});
  cases.push_back(
      {"one_hot", {Labels({5})}, [](In x) { return program::OneHot(x[0], 3, DType::kF64); }});
}

void AddSources(std::vector<Case>& cases) {
  cases.push_back(
      {"constant", {}, [](In) { return program::Builder::Current()->Constant(2.5, DType::kF64); }});
  cases.push_back({"constant, of many", {}, [](In) {
                     return program::Builder::Current()->Append1(
                         "constant", {},
                         {{"values", std::vector<double>{1, 2, 3, 4, 5}},
                          {"dims", Dims{5}},
                          {"dtype", std::string("f64")}});
                   }});
  cases.push_back({"constant, one in many places", {}, [](In) {
                     return program::Builder::Current()->Append1(
                         "constant", {},
                         {{"value", 3.0}, {"dims", Dims{5, 2}}, {"dtype", std::string("f64")}});
                   }});
  cases.push_back({"fill", {}, [](In) { return program::Fill({5, 4}, 1.5, DType::kF64); }});
  cases.push_back({"iota", {}, [](In) { return program::Iota({5, 4}, 0, DType::kI64); }});
  cases.push_back({"iota, of columns", {}, [](In) {
                     return program::Iota({5, 4}, 1, DType::kF64);
                   }});
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const std::string name = std::string(", of ") + std::string(mesh::DTypeName(dtype));
    cases.push_back({"stateless_uniform" + name, {}, [=](In) {
                       return program::StatelessUniform({5, 3}, {22, 23}, -1, 2, dtype);
                     }});
    cases.push_back({"stateless_normal" + name, {}, [=](In) {
                       return program::StatelessNormal({5, 3}, {1, 2}, 1, 2, dtype);
                     }});
    cases.push_back({"stateless_truncated_normal" + name, {}, [=](In) {
                       return program::StatelessTruncatedNormal({5, 3}, {3, 4}, 0, 1, dtype);
                     }});
  }
  cases.push_back({"dropout_mask", {Any({5, 4}), Labels({})}, [](In x) {
                     return program::Dropout(x[0], 0.4, 7, x[1]);
                   }});
}

}  // namespace

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  AddElementwise(cases);
  AddLinear(cases);
  AddShape(cases);
  AddReduce(cases);
  AddIndex(cases);
  AddSources(cases);
  return cases;
}

}  // namespace meshtrain::prover
