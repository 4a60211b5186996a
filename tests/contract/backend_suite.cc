#include "tests/contract/backend_suite.h"

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "runtime/program/ops.h"
#include "runtime/program/registry.h"
#include "tests/runtime/sharding/models.h"

namespace meshtrain::device {
namespace {

using mesh::Dims;
using mesh::DType;
using mesh::Layout;
using mesh::Mesh;
using mesh::TensorType;
using meshtrain::testing::Array;
using meshtrain::testing::StepInput;
using meshtrain::testing::StepResult;
using program::Builder;
using program::Program;
using program::Value;
using program::Variable;
using sharding::Given;

// --- memory

TEST_P(BackendSuite, BuffersAreZeroAndAligned) {
  const auto backend = GetParam().make();
  for (const int64_t bytes : {0, 1, 63, 64, 100003}) {
    const auto buffer = backend->Allocate(bytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
    EXPECT_EQ((*buffer)->bytes(), bytes);
    std::vector<std::byte> out(bytes, std::byte{1});
    ASSERT_TRUE(backend->CopyOut(**buffer, out).ok());
    EXPECT_EQ(out, std::vector<std::byte>(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>((*buffer)->host()) % 64, 0u);
  }
  EXPECT_FALSE(backend->Allocate(-1).ok());
}

TEST_P(BackendSuite, CopiesStayInsideBuffers) {
  const auto backend = GetParam().make();
  const auto buffer = *backend->Allocate(8);
  const std::vector<std::byte> in = {std::byte{1}, std::byte{2}, std::byte{3}};
  EXPECT_TRUE(backend->CopyIn(in, *buffer).ok());
  std::vector<std::byte> out(3);
  EXPECT_TRUE(backend->CopyOut(*buffer, out).ok());
  if (GetParam().computes) {
    EXPECT_EQ(out, in);
  }
  const std::vector<std::byte> long_in(9);
  std::vector<std::byte> long_out(9);
  EXPECT_EQ(backend->CopyIn(long_in, *buffer).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(backend->CopyOut(*buffer, long_out).code(), StatusCode::kInvalidArgument);
}

// --- programs

// Numbers of a type that make every op sensible: floats in (0.1, 2) with both signs, labels and
// counts small.
Array Numbers(const TensorType& type, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> real(0.1, 2.0);
  Array a(type);
  for (auto& x : a.at) {
    switch (type.dtype) {
      case DType::kBool:
        x = static_cast<double>(random() % 2);
        break;
      case DType::kU8:
      case DType::kI32:
      case DType::kI64:
        x = static_cast<double>(random() % 3);
        break;
      default:
        x = meshtrain::testing::RoundTo(type.dtype, (random() % 2 == 0 ? 1 : -1) * real(random));
    }
  }
  return a;
}

StepInput InputFor(const Program& program, uint64_t seed) {
  StepInput input;
  for (const auto& p : program.inputs) {
    input.inputs[p.name] = Numbers(program.type(p.value), seed++);
  }
  for (const auto& s : program.states) {
    input.states[s.name] = Numbers(program.type(s.entry), seed++);
  }
  return input;
}

void ExpectNear(const StepResult& got, const StepResult& want, double tolerance) {
  const auto compare = [&](const meshtrain::testing::Arrays& a,
                           const meshtrain::testing::Arrays& b) {
    for (const auto& [name, array] : b) {
      ASSERT_TRUE(a.contains(name)) << name;
      EXPECT_LE(meshtrain::testing::Difference(a.at(name), array), tolerance) << name;
    }
  };
  compare(got.outputs, want.outputs);
  compare(got.states, want.states);
}

plan::Plan PlanOf(const Program& program, const std::string& mesh_text, const Given& given,
                  plan::Options options = {}) {
  auto partitioned = sharding::Shard(program, *Mesh::Parse(mesh_text), given);
  EXPECT_TRUE(partitioned.ok()) << partitioned.status().ToString();
  auto plan = plan::MakePlan(std::move(*partitioned), options);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return std::move(*plan);
}

// Inputs of rank >= 1 cut along dimension 0 over the mesh's first axis.
Given FirstDimension(const Program& program, const std::string& mesh_text) {
  Given given;
  const Mesh mesh = *Mesh::Parse(mesh_text);
  if (mesh.num_axes() == 0) return given;
  for (const auto& p : program.inputs) {
    const int rank = program.type(p.value).rank();
    if (rank > 0) {
      given.inputs.insert_or_assign(p.name, *Layout::BatchSharded(mesh, mesh.axis(0).name, rank));
    }
  }
  return given;
}

// Inputs of rank 1 cut over the mesh's first axis, of rank 2 over the first and over all the others
// together.
Given EveryAxis(const Program& program, const std::string& mesh_text) {
  const Mesh mesh = *Mesh::Parse(mesh_text);
  mesh::DimSharding others;
  for (int a = 1; a < mesh.num_axes(); ++a) others.push_back(a);
  Given given = FirstDimension(program, mesh_text);
  for (auto& [name, layout] : given.inputs) {
    if (layout.rank() == 2) layout = layout.WithDim(1, others);
  }
  return given;
}

struct OpCase {
  std::string name;
  // Records into the current builder, from `x` f[6,5], `y` f[6,5], `row` f[5], `column` f[6,1],
  // `one` f[], `b` bool[6,5], `i` i32[6,5], `labels` i64[6], `step` i64[].
  std::function<std::vector<Value>(std::map<std::string, Value>& in)> record;
};

std::vector<OpCase> OpCases() {
  using namespace program;  // NOLINT: the ops
  using In = std::map<std::string, Value>;
  std::vector<OpCase> cases = {
      {"arithmetic",
       [](In& v) {
         return std::vector<Value>{v["x"] + v["y"], v["x"] - v["y"], v["x"] * v["y"],
                                   v["x"] / v["y"], -v["x"]};
       }},
      {"broadcast",
       [](In& v) {
         return std::vector<Value>{v["x"] + v["row"], v["column"] - v["x"], v["row"] * v["column"],
                                   v["x"] / v["one"], 2.0 - v["x"],         v["one"] * v["column"]};
       }},
      {"extremes",
       [](In& v) {
         return std::vector<Value>{Maximum(v["x"], v["y"]), Minimum(v["x"], v["row"]),
                                   ClipByValue(v["x"], -0.5, 0.5)};
       }},
      {"powers",
       [](In& v) {
         Value a = Abs(v["x"]);
         return std::vector<Value>{Pow(a, v["y"]), Sqrt(a),  Rsqrt(a),   Square(v["x"]),
                                   Log(a),         Log1p(a), Exp(v["x"])};
       }},
      {"curves",
       [](In& v) {
         Value x = v["x"];
         return std::vector<Value>{Tanh(x), Sigmoid(x), Relu(x),  Gelu(x), Gelu(x, true),
                                   Erf(x),  Sign(x),    Floor(x), Abs(x),  StopGradient(x)};
       }},
      {"comparisons",
       [](In& v) {
         Value x = v["x"], y = v["y"];
         return std::vector<Value>{Equal(x, y),          NotEqual(x, y),       Less(x, y),
                                   LessEqual(x, y),      Greater(x, v["row"]), GreaterEqual(x, 0.5),
                                   Greater(v["i"], 1.0), Equal(v["b"], v["b"])};
       }},
      {"logic",
       [](In& v) {
         Value p = Greater(v["x"], 0.0);
         return std::vector<Value>{
             LogicalAnd(p, v["b"]),       LogicalOr(p, v["b"]),        LogicalNot(p),
             Select(p, v["x"], v["row"]), Select(v["b"], 1.0, v["y"]), Select(v["b"], v["i"], 7.0)};
       }},
      {"casts",
       [](In& v) {
         return std::vector<Value>{Cast(v["x"], DType::kI32), Cast(v["x"], DType::kF64),
                                   Cast(v["x"], DType::kF32), Cast(v["b"], DType::kF32),
                                   Cast(v["i"], DType::kU8),  Cast(v["labels"], DType::kF64),
                                   Cast(v["x"], DType::kBool)};
       }},
      {"integers",
       [](In& v) {
         Value i = v["i"];
         return std::vector<Value>{i + i,     i * 3.0,         i - 5.0,      -i,
                                   Square(i), Maximum(i, 1.0), Abs(i - 2.0), Sign(i - 1.0)};
       }},
      {"matmul",
       [](In& v) {
         return std::vector<Value>{MatMul(v["x"], v["y"], false, true),
                                   MatMul(v["x"], v["y"], true, false),
                                   MatMul(v["x"], Transpose(v["y"], {1, 0})),
                                   MatMul(v["x"], Transpose(v["y"], {1, 0}), true, true)};
       }},
      {"batched_matmul",
       [](In& v) {
         Value a = Reshape(v["x"], {6, 1, 5}), b = Reshape(v["y"], {6, 5, 1});
         return std::vector<Value>{MatMul(a, b), MatMul(b, a), MatMul(a, Reshape(v["row"], {5, 1})),
                                   MatMul(a, b, true, true), MatMul(Reshape(v["row"], {1, 5}), b)};
       }},
      {"shapes",
       [](In& v) {
         Value x = v["x"];
         return std::vector<Value>{Reshape(x, {30}),
                                   Reshape(x, {3, 2, 5}),
                                   Transpose(x, {1, 0}),
                                   Transpose(Reshape(x, {3, 2, 5}), {2, 0, 1}),
                                   BroadcastTo(v["row"], {6, 5}),
                                   BroadcastTo(v["one"], {4, 3}),
                                   ExpandDims(x, 1),
                                   Squeeze(v["column"], {1})};
       }},
      {"pieces",
       [](In& v) {
         Value x = v["x"];
         return std::vector<Value>{Slice(x, {1, 2}, {3, 2}), Slice(x, {0, 1}, {6, 4}),
                                   Pad(x, {1, 0}, {0, 2}, 3.5), Concat({x, v["y"]}, 0),
                                   Concat({x, v["column"], v["y"]}, 1)};
       }},
      {"sums",
       [](In& v) {
         Value x = v["x"];
         return std::vector<Value>{ReduceSum(x),
                                   ReduceSum(x, {0}),
                                   ReduceSum(x, {1}),
                                   ReduceSum(x, {0}, true),
                                   ReduceMean(x, {1}),
                                   ReduceSum(Reshape(x, {3, 2, 5}), {0, 2}),
                                   ReduceSum(Reshape(x, {3, 2, 5}), {1}),
                                   ReduceSum(v["i"], {0})};
       }},
      {"peaks",
       [](In& v) {
         Value x = v["x"];
         return std::vector<Value>{ReduceMax(x),           ReduceMax(x, {0}),
                                   ReduceMin(x, {1}),      ReduceMax(Reshape(x, {3, 2, 5}), {0, 2}),
                                   ReduceMin(v["i"], {1}), ArgMax(x, 1),
                                   ArgMax(x, 0),           ArgMax(v["i"], 1)};
       }},
      {"softmax",
       [](In& v) {
         return std::vector<Value>{
             Softmax(v["x"]),
             LogSoftmax(v["x"]),
             SoftmaxCrossEntropy(v["x"], v["y"]),
             SigmoidCrossEntropy(v["x"], v["y"]),
             SparseSoftmaxCrossEntropy(v["x"], v["labels"]),
             SparseSoftmaxCrossEntropy(v["x"], Cast(v["labels"], DType::kI32))};
       }},
      {"one_hot",
       [](In& v) {
         return std::vector<Value>{OneHot(v["labels"], 4), OneHot(v["labels"] + 2.0, 3),
                                   OneHot(v["i"], 3, DType::kF64),
                                   OneHot(v["labels"], 2, DType::kI32)};
       }},
      {"bad_labels",
       [](In& v) {
         return std::vector<Value>{SparseSoftmaxCrossEntropy(v["x"], v["labels"] + 4.0),
                                   SparseSoftmaxCrossEntropy(v["x"], v["labels"] - 1.0)};
       }},
      {"sources",
       [](In&) {
         return std::vector<Value>{Fill({3, 2}, 2.5),
                                   Zeros({7}),
                                   Ones({2, 3}, DType::kI32),
                                   Iota({4, 3}, 0),
                                   Iota({4, 3}, 1, DType::kF32),
                                   Iota({5}, 0, DType::kI32)};
       }},
      {"random",
       [](In&) {
         return std::vector<Value>{StatelessUniform({6, 7}, {22, 23}),
                                   StatelessUniform({9, 5}, {1, 2}, -1, 3, DType::kF64),
                                   StatelessNormal({7, 5}, {3, 4}),
                                   StatelessNormal({5, 3}, {3, 4}, 1, 2, DType::kF64),
                                   StatelessTruncatedNormal({6, 6}, {5, 6}),
                                   StatelessTruncatedNormal({5, 3}, {5, 6}, 1, 2, DType::kF64)};
       }},
      {"dropout",
       [](In& v) {
         return std::vector<Value>{Dropout(v["x"], 0.4, 7, v["step"]),
                                   Dropout(v["x"], 0.0, 7, 3.0)};
       }},
      {"relayout",
       [](In& v) {
         return std::vector<Value>{Relayout(v["x"], {"unsharded", "unsharded"}) + 1.0};
       }},
      {"count_beyond",
       [](In& v) {
         return std::vector<Value>{CountBeyond(v["x"], 0.5), CountBeyond(v["row"], 1e30)};
       }},
      {"gradients",
       [](In& v) {
         Value x = v["x"], y = v["y"], row = v["row"];
         Builder& b = *x.builder();
         const Value h = Relu(MatMul(x, y, false, true) + ReduceSum(row));
         const Value loss =
             ReduceMean(SparseSoftmaxCrossEntropy(h + Tanh(h) * Sigmoid(h), v["labels"])) +
             ReduceMax(Square(x) * Exp(-Abs(y))) + ReduceSum(Select(v["b"], x * row, y));
         const Value wrt[] = {x, y, row};
         std::vector<Value> g = b.Gradient(loss, wrt);
         g.push_back(loss);
         return g;
       }},
      // The pairs that a chain may join into one loop, with vectors, rows and scalars in every
      // place.
      {"chains",
       [](In& v) {
         Value x = v["x"], y = v["y"], r = v["row"], c = v["column"], s = v["one"];
         return std::vector<Value>{x * 0.9 + y * 0.1,
                                   0.9 * x - y,
                                   y - 0.9 * x,
                                   x * s + r,
                                   r - c * x,
                                   x * y - s,
                                   Square(x) * 0.001 + y * 0.999,
                                   x * x * s,
                                   Sqrt(Abs(x)) + 1e-7,
                                   Sqrt(Abs(x) * 2.0) + s,
                                   y - 0.001 * x / (Sqrt(Square(y) * 0.5) + 1e-7),
                                   y * Cast(Greater(x, 0.0), DType::kF32),
                                   Cast(Greater(x, r), DType::kF32) * 3.0,
                                   Square(x * y) * r,
                                   (x + y) * (x + y) * (x - y),
                                   x * y + x * y};
       }},
  };
  return cases;
}

// f32 where the case says `x` is one; the whole table runs in both.
Program Record(const OpCase& c, DType dtype) {
  Builder b(c.name);
  Builder::Scope scope(b);
  std::map<std::string, Value> in;
  in["x"] = b.Input("x", {dtype, {6, 5}});
  in["y"] = b.Input("y", {dtype, {6, 5}});
  in["row"] = b.Input("row", {dtype, {5}});
  in["column"] = b.Input("column", {dtype, {6, 1}});
  in["one"] = b.Input("one", {dtype, {}});
  in["b"] = b.Input("b", {DType::kBool, {6, 5}});
  in["i"] = b.Input("i", {DType::kI32, {6, 5}});
  in["labels"] = b.Input("labels", {DType::kI64, {6}});
  in["step"] = b.Input("step", {DType::kI64, {}});
  int n = 0;
  for (const Value& v : c.record(in)) b.Output("out" + std::to_string(n++), v);
  auto program = b.Build();
  EXPECT_TRUE(program.ok()) << c.name << ": " << program.status().ToString();
  return program.ok() ? std::move(*program) : Program{};
}

TEST_P(BackendSuite, OpsAgreeWithTheInterpreterOnEveryMesh) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  std::set<std::string> ran;
  for (const OpCase& c : OpCases()) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      if (c.name == "chains" && dtype == DType::kF64) continue;  // casts to f32 inside
      const Program program = Record(c, dtype);
      const StepInput input = InputFor(program, 5);
      const auto want = meshtrain::testing::Interpret(program, input);
      ASSERT_TRUE(want.ok()) << c.name << ": " << want.status().ToString();
      for (const char* mesh : {"", "batch=2", "batch=4", "batch=3,model=2"}) {
        for (const bool fuse : {true, false}) {
          SCOPED_TRACE(c.name + " " + std::string(mesh::DTypeName(dtype)) + " on `" + mesh + "`" +
                       (fuse ? " fused" : ""));
          const plan::Plan plan =
              PlanOf(program, mesh, FirstDimension(program, mesh), {.fuse = fuse});
          const auto got = RunPlan(*backend, plan, input);
          ASSERT_TRUE(got.ok()) << got.status().ToString();
          ExpectNear(*got, *want, dtype == DType::kF32 ? 2e-6 * 8 : 1e-13 * 8);
          for (const auto& op : plan.local().ops) ran.insert(op.kind);
        }
      }
      for (const char* mesh : {"batch=2,a=2,b=2", "batch=2,a=1,b=2,c=2"}) {
        SCOPED_TRACE(c.name + " " + std::string(mesh::DTypeName(dtype)) + " on `" + mesh + "`");
        const auto got = RunPlan(*backend, PlanOf(program, mesh, EveryAxis(program, mesh)), input);
        ASSERT_TRUE(got.ok()) << got.status().ToString();
        ExpectNear(*got, *want, dtype == DType::kF32 ? 2e-6 * 8 : 1e-13 * 8);
      }
    }
  }
  // Reshards between two sharded layouts.
  for (const char* to :
       {"{*, batch}", "{batch, model}", "{*, *}", "{model, batch}", "{model+batch, *}"}) {
    Builder b("move");
    const Value x = b.Input("x", {DType::kF32, {6, 5}});
    b.Output("y", x + 1.0);
    b.Output("sum", program::ReduceSum(x, {0}));
    const Program program = *b.Build();
    const StepInput input = InputFor(program, 9);
    const Mesh mesh = *Mesh::Parse("batch=2,model=2");
    for (const char* from : {"{batch, *}", "{*, model}", "{model, batch}", "{batch+model, *}"}) {
      SCOPED_TRACE(std::string(from) + " to " + to);
      Given given;
      given.inputs.insert_or_assign("x", *Layout::Parse(from, mesh));
      given.outputs.insert_or_assign("y", *Layout::Parse(to, mesh));
      given.outputs.insert_or_assign("sum", *Layout::Parse("{batch}", mesh));
      const plan::Plan plan = PlanOf(program, "batch=2,model=2", given);
      const auto got = RunPlan(*backend, plan, input);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      ExpectNear(*got, *meshtrain::testing::Interpret(program, input), 1e-5);
      for (const auto& op : plan.local().ops) ran.insert(op.kind);
    }
  }
  // The same over three axes and one of size 1.
  for (const char* to : {"{a, b+one}", "{b+c+a, *}", "{*, c+one+b}", "{c, a+b}", "{*, *}"}) {
    Builder b("move");
    b.Output("y", b.Input("x", {DType::kF32, {6, 5}}) + 1.0);
    const Program program = *b.Build();
    const StepInput input = InputFor(program, 9);
    const char* axes = "a=2,b=2,one=1,c=2";
    const Mesh mesh = *Mesh::Parse(axes);
    for (const char* from : {"{a+b, c}", "{c, b+a}", "{*, a+b+c}", "{one+b, *} sum(a,c)"}) {
      SCOPED_TRACE(std::string(from) + " to " + to);
      Given given;
      given.inputs.insert_or_assign("x", *Layout::Parse(from, mesh));
      given.outputs.insert_or_assign("y", *Layout::Parse(to, mesh));
      const auto got = RunPlan(*backend, PlanOf(program, axes, given), input);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      ExpectNear(*got, *meshtrain::testing::Interpret(program, input), 1e-5);
    }
  }
  std::vector<std::string> missing;
  for (const program::OpDef* def : program::Registry::Standard().All()) {
    // The partitioner turns it into reshards.
    if (def->kind != "relayout" && !ran.contains(def->kind)) missing.push_back(def->kind);
  }
  EXPECT_EQ(missing, std::vector<std::string>{}) << "ops that no program here holds";
}

// Sizes beyond one block, one grain and one thread, so that every way of splitting a loop is taken.
TEST_P(BackendSuite, LargeTensorsAgreeWithTheInterpreter) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  Builder b("large");
  Builder::Scope scope(b);
  using namespace program;  // NOLINT: the ops
  const Value x = b.Input("x", {DType::kF32, {331, 257}});
  const Value y = b.Input("y", {DType::kF32, {331, 257}});
  const Value row = b.Input("row", {DType::kF32, {257}});
  const Value column = b.Input("column", {DType::kF32, {331, 1}});
  const Value deep = Reshape(b.Input("deep", {DType::kF32, {40000, 3}}), {40000, 3});
  b.Output("chain", (x * row + y) * column - Sqrt(Abs(x)) * 0.5);
  const Value left = Slice(x, {0, 0}, {128, 100}), right = Slice(y, {0, 0}, {128, 100});
  b.Output("product", MatMul(left, right, false, true));
  b.Output("product_tn", MatMul(left, right, true, false));
  b.Output("by_row", ReduceSum(x, {1}));
  b.Output("by_column", ReduceSum(x, {0}));
  b.Output("all", ReduceSum(x * y));
  b.Output("deep", ReduceSum(deep, {0}));
  b.Output("top", ReduceMax(deep, {0}));
  b.Output("best", ArgMax(x, 1));
  b.Output("turned", Transpose(x, {1, 0}));
  b.Output("softmax", Softmax(x));
  b.Output("random", StatelessUniform({311, 123}, {4, 5}));
  b.Output("flags", Select(Greater(x, row), x, y));
  const Program program = *b.Build();
  const StepInput input = InputFor(program, 3);
  static const auto want =
      *meshtrain::testing::Interpret(program, input);  // the same for every backend
  for (const char* mesh : {"", "batch=3"}) {
    SCOPED_TRACE(mesh);
    const auto got = RunPlan(*backend, PlanOf(program, mesh, FirstDimension(program, mesh)), input);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    ExpectNear(*got, want, 1e-4);  // long sums
  }
}

// Bit for bit: a shard draws the numbers that its elements have in the whole tensor.
TEST_P(BackendSuite, RandomNumbersDoNotDependOnTheLayout) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  using namespace program;  // NOLINT: the ops
  Builder b("random");
  Builder::Scope scope(b);
  const Dims dims = {7, 6, 5};
  b.Output("uniform", StatelessUniform(dims, {22, 23}));
  b.Output("uniform_f64", StatelessUniform(dims, {22, 23}, -2, 3, DType::kF64));
  b.Output("normal", StatelessNormal(dims, {1, 2}, 1, 0.5));
  b.Output("truncated", StatelessTruncatedNormal(dims, {1, 2}));
  b.Output("iota", Iota(dims, 1));
  b.Output("dropped", Dropout(Ones(dims), 0.3, 5, 9.0));
  const Program program = *b.Build();
  const auto want = RunPlan(*backend, PlanOf(program, "", {}), {});
  ASSERT_TRUE(want.ok()) << want.status().ToString();
  const Mesh mesh = *Mesh::Parse("batch=2,model=3");
  for (const char* layout :
       {"{batch, *, *}", "{*, model, *}", "{*, *, batch}", "{model, batch, *}", "{batch, *, model}",
        "{batch+model, *, *}", "{*, batch, model}", "{*, *, model+batch}"}) {
    SCOPED_TRACE(layout);
    Given given;
    for (const auto& port : program.outputs) {
      given.outputs.insert_or_assign(port.name, *Layout::Parse(layout, mesh));
    }
    const plan::Plan plan = PlanOf(program, "batch=2,model=3", given);
    for (const auto& op : plan.local().ops) {
      EXPECT_FALSE(plan::Communicates(op)) << "drawn whole: " << op.kind;
    }
    const auto got = RunPlan(*backend, plan, {});
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    for (const auto& [name, array] : want->outputs) {
      EXPECT_EQ(got->outputs.at(name).at, array.at) << name;
    }
  }
}

TEST_P(BackendSuite, EmptyTensorsAreFine) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  Builder b("empty");
  Builder::Scope scope(b);
  using namespace program;  // NOLINT: the ops
  const Value x = b.Input("x", {DType::kF32, {0, 4}});
  const Value y = b.Input("y", {DType::kF32, {4, 3}});
  b.Output("sum", ReduceSum(x, {0}));
  b.Output("chain", x * 2.0 + 1.0);
  b.Output("product", MatMul(x, y));
  b.Output("zeros", MatMul(x, x, true, false));
  b.Output("joined", Concat({x, Transpose(y, {1, 0})}, 0));
  b.Output("softmax", Softmax(x));
  const Program program = *b.Build();
  const StepInput input = InputFor(program, 3);
  const auto got = RunPlan(*backend, PlanOf(program, "", {}), input);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  ExpectNear(*got, *meshtrain::testing::Interpret(program, input), 1e-6);
}

// --- steps

TEST_P(BackendSuite, TrainingStepsUpdateStatesInPlaceAndCountBytes) {
  const auto backend = GetParam().make();
  const sharding::MlpSizes sizes{.batch = 8, .widths = {6, 7, 4, 3}, .dtype = DType::kF64};
  const Program program = sharding::MlpTrainStep(sizes);
  StepInput input = InputFor(program, 11);
  for (auto& [name, array] : input.states) {
    for (auto& x : array.at) x = name == "t" ? 0 : name.ends_with(".v") ? x * x : x;
  }
  StepResult want{{}, input.states};
  constexpr int kSteps = 3;
  for (int i = 0; i < kSteps; ++i) {
    want = *meshtrain::testing::Interpret(program, {input.inputs, want.states});
  }
  for (const char* mesh : {"", "batch=2", "batch=8", "batch=2,model=2", "model=3"}) {
    for (const bool fuse : {true, false}) {
      SCOPED_TRACE(std::string(mesh) + (fuse ? " fused" : ""));
      Given given;
      const Mesh m = *Mesh::Parse(mesh);
      if (m.FindAxis("batch")) {
        given.inputs.insert_or_assign("x", *Layout::BatchSharded(m, "batch", 2));
      }
      if (m.FindAxis("model")) {
        sharding::GiveLayer(given, "hidden_1", *Layout::Parse("{*, model}", m));
        sharding::GiveLayer(given, "hidden_2", *Layout::Parse("{model, *}", m));
      }
      const plan::Plan plan = PlanOf(program, mesh, given, {.fuse = fuse});
      int64_t bytes = 0;
      const auto got = RunPlan(*backend, plan, input, {.steps = kSteps, .bytes_sent = &bytes});
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      if (!GetParam().computes) continue;
      ExpectNear(*got, want, 1e-9);
      EXPECT_EQ(bytes, plan.CollectiveBytesPerStep());
    }
  }
}

TEST_P(BackendSuite, CollectivesBesideTheStepChangeNothing) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  const sharding::MlpSizes sizes{.batch = 8, .widths = {6, 7, 4, 3}, .dtype = DType::kF64};
  const Program program = sharding::MlpTrainStep(sizes);
  StepInput input = InputFor(program, 17);
  for (auto& [name, array] : input.states) {
    for (auto& x : array.at) x = name == "t" ? 0 : name.ends_with(".v") ? x * x : x;
  }
  for (const char* mesh : {"batch=2", "batch=4,model=2", "model=2"}) {
    Given given;
    const Mesh m = *Mesh::Parse(mesh);
    if (m.FindAxis("batch")) {
      given.inputs.insert_or_assign("x", *Layout::BatchSharded(m, "batch", 2));
    }
    if (m.FindAxis("model")) {
      sharding::GiveLayer(given, "hidden_1", *Layout::Parse("{*, model}", m));
      sharding::GiveLayer(given, "hidden_2", *Layout::Parse("{model, *}", m));
    }
    // Small buckets: many calls in flight.
    const plan::Plan beside =
        PlanOf(program, mesh, given,
               {.overlap = true, .overlap_bucket_bytes = 64, .finite_outputs = {"loss"}});
    size_t waits = 0;
    for (const plan::Step& step : beside.steps) waits += step.waits.size();
    EXPECT_GT(waits, 0u) << mesh;
    const auto want = RunPlan(*backend, PlanOf(program, mesh, given, {.finite_outputs = {"loss"}}),
                              input, {.steps = 5});
    ASSERT_TRUE(want.ok()) << want.status().ToString();
    for (uint64_t seed = 0; seed < 10; ++seed) {
      SCOPED_TRACE(std::string(mesh) + " seed " + std::to_string(seed));
      int64_t bytes = 0, calls = 0;
      const auto got =
          RunPlan(*backend, beside, input,
                  {.seed = seed, .steps = 5, .bytes_sent = &bytes, .calls_beside = &calls});
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      ExpectNear(*got, *want, 0);
      EXPECT_EQ(bytes, beside.CollectiveBytesPerStep());
      EXPECT_GT(calls, 0);
    }
  }
}

TEST_P(BackendSuite, AGuardedOutputThatIsNotFiniteLeavesStatesAlone) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  Builder b("guarded");
  Builder::Scope scope(b);
  const Variable w("w", {DType::kF32, {4}});
  const Value x = b.Input("x", {DType::kF32, {4}});
  const Value loss = program::ReduceSum(x * w);
  program::Assign(w, b.Read(w) - 0.1 * x);
  b.Output("loss", loss);
  const Program program = *b.Build();
  for (const char* mesh : {"", "batch=2"}) {
    const plan::Plan plan =
        PlanOf(program, mesh, FirstDimension(program, mesh), {.finite_outputs = {"loss"}});
    ASSERT_GE(plan.guard_step, 0);
    std::vector<int64_t> ranks;
    for (int64_t r = 0; r < plan.partitioned.mesh.size(); ++r) ranks.push_back(r);
    StepInput input = InputFor(program, 2);
    const auto good = RunPlan(*backend, plan, input);
    ASSERT_TRUE(good.ok()) << good.status().ToString();
    ExpectNear(*good, *meshtrain::testing::Interpret(program, input), 1e-6);
    input.inputs["x"].at[3] = std::numeric_limits<double>::infinity();
    const auto bad = RunPlan(*backend, plan, input);
    ASSERT_FALSE(bad.ok());
    EXPECT_EQ(bad.status().code(), StatusCode::kAborted);
    EXPECT_NE(bad.status().message().find("loss"), std::string::npos) << bad.status().message();
  }
}

// Element-wise ops make infinities of the zeros that pad uneven shards. A guard looks past them,
// and at every element.
TEST_P(BackendSuite, AGuardLooksAtElementsAloneWhereShardsAreUneven) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    Builder b("guarded");
    Builder::Scope scope(b);
    const Variable w("w", {DType::kF32, {}});
    const Value x = b.Input("x", {dtype, {5, 3, 7}});
    b.Output("y", program::Log(x));
    program::Assign(w, b.Read(w) + 1.0);
    const Program program = *b.Build();
    StepInput input = InputFor(program, 3);
    for (auto& value : input.inputs["x"].at) value = std::abs(value) + 0.5L;
    for (const auto& [mesh_text, layout_text] : std::vector<std::pair<const char*, const char*>>{
             {"a=2", "{a, *, *}"},
             {"a=4", "{*, *, a}"},
             {"a=4", "{*, a, *}"},  // the last device holds no element
             {"a=2,b=3", "{a, *, b}"},
             {"a=2,b=2", "{*, a+b, *}"},
             {"a=5,b=3", "{a, b, *}"}}) {
      SCOPED_TRACE(std::string(mesh_text) + " " + layout_text);
      const Mesh mesh = *Mesh::Parse(mesh_text);
      Given given;
      given.inputs.insert_or_assign("x", *Layout::Parse(layout_text, mesh));
      given.outputs = {{"y", given.inputs.at("x")}};
      const plan::Plan plan = PlanOf(program, mesh_text, given, {.finite_outputs = {"y"}});
      ASSERT_GE(plan.guard_step, 0);
      const auto good = RunPlan(*backend, plan, input);
      ASSERT_TRUE(good.ok()) << good.status().ToString();
      ExpectNear(*good, *meshtrain::testing::Interpret(program, input), 1e-6);
      for (auto& value : input.inputs["x"].at) {
        const auto before = std::exchange(value, -1);
        EXPECT_EQ(RunPlan(*backend, plan, input).status().code(), StatusCode::kAborted)
            << "element " << &value - input.inputs["x"].at.data();
        value = before;
      }
    }
  }
}

TEST_P(BackendSuite, RefusesBuffersThatDoNotFit) {
  const auto backend = GetParam().make();
  Builder b("add");
  b.Output("y", b.Input("x", {DType::kF32, {4}}) + 1.0);
  const plan::Plan plan = PlanOf(*b.Build(), "", {});
  const int64_t rank = 0;
  const auto executable = *backend->Compile(plan, {&rank, 1}, nullptr);
  const auto small = *backend->Allocate(12), fits = *backend->Allocate(16);
  const auto run = [&](std::vector<Buffer*> in, std::vector<Buffer*> out) {
    const DeviceBuffers device{.inputs = std::move(in), .outputs = std::move(out)};
    return executable->Run({&device, 1});
  };
  EXPECT_TRUE(run({fits.get()}, {fits.get()}).ok());
  EXPECT_EQ(run({small.get()}, {fits.get()}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run({fits.get()}, {small.get()}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run({fits.get(), fits.get()}, {fits.get()}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run({}, {fits.get()}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(executable->Run({}).code(), StatusCode::kInvalidArgument);
}

TEST_P(BackendSuite, APlanWithCollectivesNeedsACommunicator) {
  const auto backend = GetParam().make();
  Builder b("sum");
  b.Output("y", program::ReduceSum(b.Input("x", {DType::kF32, {4}})));
  const Program program = *b.Build();
  const plan::Plan plan = PlanOf(program, "batch=2", FirstDimension(program, "batch=2"));
  const int64_t ranks[] = {0, 1};
  EXPECT_EQ(backend->Compile(plan, ranks, nullptr).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace meshtrain::device
