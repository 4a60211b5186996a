// Ops and programs of a few ops on every backend, held against the interpreter.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <span>

#include "runtime/program/ops.h"
#include "runtime/program/registry.h"
#include "tests/contract/backend_programs.h"
#include "tests/contract/backend_suite.h"
#include "tests/support/op_cases/cases.h"
#include "tests/support/random/program.h"

namespace meshtrain::device {
namespace {

using mesh::Dims;
using mesh::DType;
using mesh::Layout;
using mesh::Mesh;
using program::Builder;
using program::OpCase;
using program::Program;
using program::Value;
using sharding::Given;
using testing::StepInput;

double Tolerance(DType dtype) {
  if (mesh::IsHalf(dtype)) return 16 * mesh::UnitRoundoff(dtype);
  return dtype == DType::kF32 ? 2e-6 * 8 : 1e-13 * 8;
}

// `f` is `dtype`.
Program Record(const SmallProgram& c, DType dtype) {
  Builder b(c.name);
  Builder::Scope scope(b);
  std::map<std::string, Value> in;
  in["x"] = b.Input("x", {dtype, {6, 5}});
  in["y"] = b.Input("y", {dtype, {6, 5}});
  in["row"] = b.Input("row", {dtype, {5}});
  in["column"] = b.Input("column", {dtype, {6, 1}});
  in["one"] = b.Input("one", {dtype, {}});
  in["b"] = b.Input("b", {DType::kBool, {6, 5}});
  in["labels"] = b.Input("labels", {DType::kI64, {6}});
  in["step"] = b.Input("step", {DType::kI64, {}});
  int n = 0;
  for (const Value& v : c.record(in)) b.Output("out" + std::to_string(n++), v);
  auto program = b.Build();
  EXPECT_TRUE(program.ok()) << c.name << ": " << program.status().ToString();
  return program.ok() ? std::move(*program) : Program{};
}

// Whether nothing is left out for the backend's slowness: MT_ALL_OP_CASES, of the label `long`.
bool All(const BackendFactory& backend) {
  return backend.quick || std::getenv("MT_ALL_OP_CASES") != nullptr;
}

// Where compiling is slow: the table's rows, and those of floats in f32, f64 and one of the types
// of 16 bits.
std::vector<OpCase> FewCases() {
  const auto key = [](const OpCase& c) {
    std::string text = c.name();
    for (const std::string& operand : c.operands) text += " " + operand;
    return text;
  };
  std::set<std::string> table;
  for (const OpCase& row : program::OpCases()) table.insert(key(row));
  std::vector<OpCase> few;
  int halves = 0;
  for (OpCase& row : CasesOfBackends()) {
    const auto types = row.types();
    const auto any = [&](bool (*is)(DType)) {
      return std::ranges::any_of(types, [&](const auto& type) { return is(type.dtype); });
    };
    if (!table.contains(key(row))) {
      if (!any(mesh::IsFloat) || !row.whole.empty() || row.draw == program::Draw::kWide) continue;
      // bf16 and f16 follow each other; of one row the one, of the next the other.
      const int at = any(mesh::IsHalf) ? halves++ : 0;
      if ((at + at / 2) % 2 == 1) continue;
    }
    few.push_back(std::move(row));
  }
  return few;
}

// Of the types of floats that the program has, the one that rounds most.
DType Coarsest(const Program& program) {
  DType coarsest = DType::kF64;
  for (const auto& value : program.values) {
    const DType dtype = value.type.dtype;
    if (mesh::IsFloat(dtype) && mesh::UnitRoundoff(dtype) > mesh::UnitRoundoff(coarsest)) {
      coarsest = dtype;
    }
  }
  return coarsest;
}

// Rows as one program, each with inputs of its own; an output bears its row's name and types.
struct RowsProgram {
  Program program;
  StepInput input;
};

RowsProgram RecordRows(std::span<const OpCase> rows) {
  Builder b("rows");
  StepInput input;
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::string prefix = "x" + std::to_string(r) + "_";
    std::vector<Value> inputs;
    const Value result = program::RecordCase(rows[r], b, &inputs, prefix);
    std::string name = std::to_string(r) + " " + rows[r].name() + ":";
    for (const auto& type : rows[r].types()) name += " " + type.ToString();
    b.Output(name, result);
    const auto operands = program::DrawOperands(rows[r], 5);
    for (size_t i = 0; i < inputs.size(); ++i) {
      testing::Array& array = input.inputs[prefix + std::to_string(i)] = operands[i];
      for (auto& v : array.at) v = testing::RoundTo(array.type.dtype, v);
    }
  }
  auto program = b.Build();
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  return {program.ok() ? std::move(*program) : Program{}, std::move(input)};
}

TEST_P(BackendSuite, OpsAgreeWithTheInterpreterOnEveryMesh) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  // By type, since the tolerance is one of a program; relayouts, which name an axis `a`.
  std::map<std::pair<DType, bool>, std::vector<OpCase>> groups;
  for (const OpCase& row : All(GetParam()) ? CasesOfBackends() : FewCases()) {
    groups[{Coarsest(RecordRows({&row, 1}).program), row.kind == "relayout"}].push_back(row);
  }
  // What compiles slowly gets many rows as one program.
  const size_t together = GetParam().quick ? 1 : 24;
  std::set<std::string> ran;
  for (const auto& [group, all] : groups) {
    const auto& [coarsest, names_an_axis] = group;
    for (size_t from = 0; from < all.size(); from += together) {
      const auto [program, input] =
          RecordRows(std::span(all).subspan(from, std::min(together, all.size() - from)));
      const auto want = testing::Interpret(program, input);
      ASSERT_TRUE(want.ok()) << all[from].name() << ": " << want.status().ToString();
      const auto check = [&](const char* mesh, const Given& given) {
        if (!Fits(*backend, mesh)) return;
        SCOPED_TRACE(all[from].name() + " and what follows it, on `" + mesh + "`");
        const plan::Plan plan = LoweredBy(*backend, program, mesh, given);
        const auto got = RunPlan(*backend, plan, input);
        ASSERT_TRUE(got.ok()) << got.status().ToString();
        ExpectNear(*got, *want, Tolerance(coarsest));
        for (const auto& op : plan.local().ops) ran.insert(op.kind);
      };
      if (!names_an_axis) check("", {});
      for (const char* mesh : {"a=2", "a=4", "a=3,b=2"}) check(mesh, FirstDimension(program, mesh));
      for (const char* mesh : {"a=2,b=2,c=2", "a=2,b=1,c=2,d=2"}) {
        check(mesh, EveryAxis(program, mesh));
      }
    }
  }
  for (const program::OpDef* def : program::Registry::Standard().All()) {
    if (def->kind == "mask_pad" && !Fits(*backend, "a=4")) continue;  // of uneven shards
    // The partitioner turns it into reshards.
    if (def->collective || def->kind == "shard_slice" || def->kind == "shard_window" ||
        def->kind == "relayout") {
      continue;
    }
    EXPECT_TRUE(ran.contains(def->kind)) << "no row runs op `" << def->kind << "`";
  }
}

TEST_P(BackendSuite, SmallProgramsAgreeWithTheInterpreterOnEveryMesh) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  for (const SmallProgram& small : SmallPrograms()) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {           // of halves: random programs
      if (small.name == "chains" && dtype == DType::kF64) continue;  // casts to f32 inside
      const Program program = Record(small, dtype);
      const StepInput input = InputFor(program, 5);
      const auto want = testing::Interpret(program, input);
      ASSERT_TRUE(want.ok()) << small.name << ": " << want.status().ToString();
      const auto check = [&](const char* mesh, const Given& given, bool fuse) {
        if (!Fits(*backend, mesh)) return;
        SCOPED_TRACE(small.name + " " + std::string(mesh::DTypeName(dtype)) + " on `" + mesh + "`" +
                     (fuse ? " fused" : ""));
        const auto got = RunPlan(*backend, PlanOf(program, mesh, given, {.fuse = fuse}), input);
        ASSERT_TRUE(got.ok()) << got.status().ToString();
        ExpectNear(*got, *want, Tolerance(dtype));
      };
      // Where compiling is slow, one type on every mesh.
      const bool few = !All(GetParam()) && dtype == DType::kF64;
      for (const char* mesh : {"batch=3,model=2", "", "batch=2", "batch=4"}) {
        check(mesh, FirstDimension(program, mesh), true);
        if (few && Fits(*backend, mesh)) break;
        if (GetParam().quick) check(mesh, FirstDimension(program, mesh), false);
      }
      for (const char* mesh : {"batch=2,a=2,b=2", "batch=2,a=1,b=2,c=2"}) {
        if (few) break;
        check(mesh, EveryAxis(program, mesh), true);
      }
    }
  }
}

// From layout to layout, by all collectives.
TEST_P(BackendSuite, ReshardsAgreeWithTheInterpreter) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  if (!Fits(*backend, "h=3,w=4")) GTEST_SKIP() << "few devices";
  std::set<std::string> ran;
  for (const DType dtype : mesh::kAllDTypes) {
    if (!All(GetParam()) && dtype != DType::kF32) continue;
    for (const char* to :
         {"{*, batch}", "{batch, model}", "{*, *}", "{model, batch}", "{model+batch, *}"}) {
      const Program program = Moved({dtype, {6, 5}});
      const StepInput input = InputFor(program, 9);
      const Mesh mesh = *Mesh::Parse("batch=2,model=2");
      for (const char* from : {"{batch, *}", "{*, model}", "{model, batch}", "{batch+model, *}"}) {
        SCOPED_TRACE(std::string(from) + " to " + to + " of " + std::string(DTypeName(dtype)));
        Given given;
        given.inputs.insert_or_assign("x", *Layout::Parse(from, mesh));
        for (const auto& port : program.outputs) {
          given.outputs.insert_or_assign(port.name,
                                         *Layout::Parse(port.name == "sum" ? "{batch}" : to, mesh));
        }
        const plan::Plan plan = LoweredBy(*backend, program, "batch=2,model=2", given);
        const auto got = RunPlan(*backend, plan, input);
        ASSERT_TRUE(got.ok()) << got.status().ToString();
        ExpectNear(*got, *testing::Interpret(program, input), Tolerance(Coarsest(program)));
        for (const auto& op : plan.local().ops) ran.insert(op.kind);
      }
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
      const plan::Plan plan = PlanOf(program, axes, given);
      const auto got = RunPlan(*backend, plan, input);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      for (const auto& op : plan.local().ops) ran.insert(op.kind);
      ExpectNear(*got, *testing::Interpret(program, input), 1e-5);
    }
  }
  const Program windows = WindowsInSpace();
  const StepInput images = InputFor(windows, 9);
  for (const char* axes : kSpaceMeshes) {
    SCOPED_TRACE(axes);
    const plan::Plan plan = PlanInSpace(windows, axes);
    const auto got = RunPlan(*backend, plan, images);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    ExpectNear(*got, *testing::Interpret(windows, images), 1e-4);
    for (const auto& op : plan.local().ops) ran.insert(op.kind);
  }
  for (const program::OpDef* def : program::Registry::Standard().All()) {
    if (!def->collective && def->kind != "shard_slice" && def->kind != "shard_window") continue;
    EXPECT_TRUE(ran.contains(def->kind)) << "no reshard runs op `" << def->kind << "`";
  }
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
  b.Output("order", ArgSort(x, 1));
  b.Output("columns", Sort(y, 0, true));
  b.Output("ten", TopK(x, 10).values);
  const Value numbers = ArgSort(y, 1);
  b.Output("along", AddAlong(y, numbers, x, 1) + TakeAlong(x, numbers, 1));
  b.Output("set", ScatterSet(x, Slice(ArgSort(column, 0), {0, 0}, {200, 1}),
                             Slice(Reshape(y, {331, 1, 257}), {0, 0, 0}, {200, 1, 257})));
  b.Output("turned", Transpose(x, {1, 0}));
  b.Output("softmax", Softmax(x));
  b.Output("random", StatelessUniform({311, 123}, {4, 5}));
  b.Output("flags", Select(Greater(x, row), x, y));
  const Program program = *b.Build();
  const StepInput input = InputFor(program, 3);
  static const auto want = *testing::Interpret(program, input);  // the same for every backend
  for (const char* mesh : {"", "batch=3"}) {
    SCOPED_TRACE(mesh);
    if (!Fits(*backend, mesh)) continue;
    const auto got = RunPlan(*backend, PlanOf(program, mesh, FirstDimension(program, mesh)), input);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    ExpectNear(*got, want, 1e-4);  // long sums
  }
}

// A count of what is beyond a limit in a product may be told from the product's factors, where they
// are few. Each case's factors lie around what just may, or may not, lead to something beyond.
TEST_P(BackendSuite, CountsInProductsWhateverTheirFactorsTell) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  std::mt19937_64 random(5);
  const auto pick = [&](int n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  int none = 0, some = 0;
  const int rounds = GetParam().quick ? 400 : 16;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    const DType dtype = pick(3) == 0 ? DType::kF64 : DType::kF32;
    const double largest = dtype == DType::kF32 ? std::numeric_limits<float>::max()
                                                : std::numeric_limits<double>::max();
    const double limit = pick(2) == 0 ? largest / static_cast<double>(1 + pick(4))
                                      : std::pow(10.0, static_cast<double>(pick(60)) - 35);
    const int64_t k = 1 + pick(4), m = 17 + pick(40), n = 17 + pick(40);
    const bool transpose_a = pick(2) == 0, transpose_b = pick(2) == 0;
    Builder b("counted");
    Builder::Scope scope(b);
    const Value x = b.Input("x", {dtype, transpose_a ? Dims{k, m} : Dims{m, k}});
    const Value y = b.Input("y", {dtype, transpose_b ? Dims{n, k} : Dims{k, n}});
    const Value product = MatMul(x, y, transpose_a, transpose_b);
    b.Output("product", product);
    b.Output("count", program::CountBeyond(product, limit));
    b.Output("stricter", program::CountBeyond(product, limit / 64));
    const Program program = *b.Build();
    StepInput input = InputFor(program, static_cast<uint64_t>(round));
    const double tilt = pick(4) == 0 ? std::pow(2.0, static_cast<double>(pick(60)) - 30) : 1;
    const double scale = std::sqrt(limit) * std::pow(2.0, static_cast<double>(pick(8)) - 6);
    for (auto& v : input.inputs.at("x").at) v *= scale * tilt;
    for (auto& v : input.inputs.at("y").at) v *= scale / tilt;
    if (pick(8) == 0) input.inputs.at("x").at[0] = std::numeric_limits<double>::quiet_NaN();
    if (pick(8) == 0) input.inputs.at("y").at[0] = std::numeric_limits<double>::infinity();
    for (auto& [name, array] : input.inputs) {
      for (auto& v : array.at) v = testing::RoundTo(dtype, v);
    }
    for (const char* mesh : {"", "batch=2"}) {
      if (!Fits(*backend, mesh)) continue;
      const auto got =
          RunPlan(*backend, PlanOf(program, mesh, FirstDimension(program, mesh)), input);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      for (const auto& [name, beyond] : {std::pair("count", limit), {"stricter", limit / 64}}) {
        int64_t want = 0;
        for (const auto v : got->outputs.at("product").at) {
          want += std::abs(static_cast<double>(v)) <= beyond ? 0 : 1;
        }
        EXPECT_EQ(got->outputs.at(name).at[0], want) << mesh << " " << name << " " << limit;
        (want == 0 ? none : some) += 1;
      }
    }
  }
  EXPECT_GT(none, rounds / 2);
  EXPECT_GT(some, rounds / 2);
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
  if (!Fits(*backend, "batch=2,model=3")) GTEST_SKIP() << "few devices";
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
  b.Output("order", ArgSort(x, 1));
  b.Output("values", Sort(x, 0));
  b.Output("set", ScatterSet(y, Iota({0}, 0), Reshape(x, {0, 3})));
  b.Output("taken", TakeAlong(x, ArgSort(x, 1), 1));
  b.Output("none taken", Gather(y, Iota({0}, 0), 0));
  b.Output("of no columns", Gather(Transpose(x, {1, 0}), Iota({2}, 0), 0));
  b.Output("of no rows", Gather(x, Iota({2}, 0), 0));  // NaN
  const Program program = *b.Build();
  const StepInput input = InputFor(program, 3);
  const auto got = RunPlan(*backend, PlanOf(program, "", {}), input);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  ExpectNear(*got, *testing::Interpret(program, input), 1e-6);
}

}  // namespace
}  // namespace meshtrain::device
