#include "tests/contract/backend_programs.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <span>
#include <vector>

#include "runtime/program/ops.h"
#include "runtime/program/registry.h"
#include "tests/support/random/program.h"

namespace meshtrain::device {
namespace {

using mesh::DType;
using mesh::Layout;
using mesh::Mesh;
using mesh::TensorType;
using program::Program;
using program::Value;
using sharding::Given;
using testing::Array;
using testing::StepInput;
using testing::StepResult;

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
        x = testing::RoundTo(type.dtype, (random() % 2 == 0 ? 1 : -1) * real(random));
    }
  }
  return a;
}

}  // namespace

std::vector<SmallProgram> SmallPrograms() {
  using namespace program;  // NOLINT: the ops
  using In = std::map<std::string, Value>;
  return {
      {"bad_labels",
       [](In& v) {
         return std::vector<Value>{SparseSoftmaxCrossEntropy(v["x"], v["labels"] + 4.0),
                                   SparseSoftmaxCrossEntropy(v["x"], v["labels"] - 1.0)};
       }},
      {"bad_ids",
       [](In& v) {
         return std::vector<Value>{
             Gather(v["x"], v["labels"] + 4.0), Gather(v["x"], v["labels"] - 1.0, 1),
             SegmentSum(v["x"], v["labels"], 2), SegmentSum(v["x"], v["labels"], 3)};
       }},
      {"bad_ids_of_rows",
       [](In& v) {
         const Value x = v["x"], y = v["y"], labels = v["labels"];
         const Value ids = BroadcastTo(ExpandDims(labels, 1), {6, 5});
         return std::vector<Value>{TakeAlong(x, ids + 3.0, 1), AddAlong(x, ids - 1.0, y, 1),
                                   AddAlong(x, ids, y, 1), ScatterSet(x, labels + 4.0, y),
                                   ScatterSet(x, labels - 1.0, y)};
       }},
      // Equal ids, near each other and far apart.
      {"set_again_and_again",
       [](In& v) {
         const Value x = v["x"], y = v["y"], labels = v["labels"];
         const Value set = ScatterSet(x, labels * 2.0, y);
         const Value columns = ScatterSet(x, labels, Concat({y, v["column"]}, 1), 1);
         const Value wrt[] = {x, y};
         std::vector<Value> all =
             x.builder()->Gradient(ReduceSum(Square(set)) + ReduceSum(columns * x), wrt);
         all.push_back(set);
         all.push_back(columns);
         return all;
       }},
      // NaN, both zeros and infinities, each several times among equals.
      {"order",
       [](In& v) {
         const Value x = v["x"], y = v["y"];
         const double nan = std::numeric_limits<double>::quiet_NaN();
         const double infinity = std::numeric_limits<double>::infinity();
         const Value some = Select(Greater(y, 1.5), nan, Floor(x * 2.0) * 0.5);
         const Value odd = Select(Less(y, -1.2), infinity, Select(Greater(x, 1.0), -0.0, some));
         const Value mixed = Select(v["b"], odd, Select(Less(x, -1.0), -infinity, x * 0.0));
         std::vector<Value> all;
         for (const bool descending : {false, true}) {
           const int64_t axis = descending ? 0 : 1;
           const Value sorted = Sort(mixed, axis, descending);
           all.push_back(sorted);
           all.push_back(1.0 / sorted);  // which of the zeros stands where
           all.push_back(ArgSort(mixed, axis, descending));
         }
         const Top top = TopK(mixed, 3), first = TopK(mixed, 1, 0);
         const Top whole = TopK(Cast(Floor(x * 1.5), DType::kI32), 2);
         for (const Top& t : {top, first, whole}) {
           all.push_back(t.values);
           all.push_back(t.indices);
         }
         all.push_back(Equal(first.indices, ExpandDims(ArgMax(mixed, 0), 0)));
         const Value wrt[] = {x};
         const Value loss = ReduceSum(Square(TopK(x, 2).values)) + ReduceSum(Sort(x, 0, true) * y);
         all.push_back(x.builder()->Gradient(loss, wrt)[0]);
         return all;
       }},
      // What all logits of a row have in common changes nothing.
      {"far_logits",
       [](In& v) {
         const Value far = Floor(v["x"] * 4.0) * 0.25 + 16384.0;
         return std::vector<Value>{LogSoftmax(far), SoftmaxCrossEntropy(far, Abs(v["y"])),
                                   SparseSoftmaxCrossEntropy(far, v["labels"])};
       }},
      // The largest integer, also where a shard is padded.
      {"least_of_the_largest",
       [](In& v) {
         const auto largest = [](Value zero) { return (zero + 0x1p52) * 2048.0 - 1.0; };
         const Value zeros = v["labels"] - v["labels"];
         return std::vector<Value>{
             Equal(ReduceMin(largest(zeros)), largest(ReduceMax(zeros))),
             Equal(ReduceMax(0.0 - largest(zeros)), 0.0 - largest(ReduceMax(zeros)))};
       }},
      {"dropout",
       [](In& v) {
         return std::vector<Value>{Dropout(v["x"], 0.4, 7, v["step"]),
                                   Dropout(v["x"], 0.0, 7, 3.0)};
       }},
      {"gradients",
       [](In& v) {
         Value x = v["x"], y = v["y"], row = v["row"];
         program::Builder& b = *x.builder();
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
}

std::vector<program::OpCase> CasesOfBackends() {
  using program::OpCase;
  std::vector<OpCase> cases;
  for (const OpCase& row : program::OpCases()) {
    if (!testing::IsOfWholePrograms(*program::Registry::Standard().Find(row.kind))) continue;
    cases.push_back(row);
    for (OpCase& twin : program::InEveryType(row)) {
      bool floats_alone = twin.operands != row.operands;
      const auto types = twin.types(), before = row.types();
      for (size_t i = 0; i < types.size(); ++i) {
        floats_alone &= types[i] == before[i] ||
                        (mesh::IsFloat(types[i].dtype) && mesh::IsFloat(before[i].dtype));
      }
      if (floats_alone) cases.push_back(std::move(twin));
    }
  }
  for (const auto& more : {program::MissingTypes(cases), program::CastCases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

Program Moved(const TensorType& type) {
  program::Builder b("move");
  const Value x = b.Input("x", type);
  if (type.dtype == DType::kBool) {
    b.Output("y", program::LogicalNot(x));
  } else {
    b.Output("y", x + 1.0);
    b.Output("sum", program::ReduceSum(x, {0}));
  }
  return *b.Build();
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
  const auto compare = [&](const testing::Arrays& a, const testing::Arrays& b) {
    for (const auto& [name, array] : b) {
      ASSERT_TRUE(a.contains(name)) << name;
      EXPECT_LE(testing::Difference(a.at(name), array),
                mesh::IsFloat(array.type.dtype) ? tolerance : 0)
          << name;
    }
  };
  compare(got.outputs, want.outputs);
  compare(got.states, want.states);
}

plan::Plan PlanOf(const Program& program, const std::string& mesh_text, const Given& given,
                  plan::Options options) {
  auto partitioned = sharding::Shard(program, *Mesh::Parse(mesh_text), given);
  EXPECT_TRUE(partitioned.ok()) << partitioned.status().ToString();
  auto plan = plan::MakePlan(std::move(*partitioned), options);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return std::move(*plan);
}

plan::Plan LoweredBy(const Backend& backend, const Program& program, const std::string& mesh_text,
                     const Given& given) {
  auto partitioned = sharding::Shard(program, *Mesh::Parse(mesh_text), given);
  EXPECT_TRUE(partitioned.ok()) << partitioned.status().ToString();
  auto plan = backend.Lower(std::move(*partitioned), {});
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return std::move(*plan);
}

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

Program WindowsInSpace() {
  program::Builder b("windows");
  const program::Builder::Scope scope(b);
  const program::Value image = b.Input("x", {mesh::DType::kF32, {2, 13, 12, 2}});
  const program::Value kernel = b.Input("kernel", {mesh::DType::kF32, {3, 3, 2, 3}});
  program::Value y =
      program::Conv(image, kernel, {.strides = {2, 1}, .padding = program::Padding::kSame});
  y = program::WindowMax(y, {.sizes = {3, 2}, .strides = {1, 2}});
  const std::vector<program::Value> wrt = {image, kernel};
  const auto gradients =
      b.Gradient(program::ReduceSum(y * y), std::span<const program::Value>(wrt));
  b.Output("y", y);
  b.Output("dx", gradients[0]);
  b.Output("dk", gradients[1]);
  return *b.Build();
}

plan::Plan PlanInSpace(const Program& windows, const std::string& mesh_text,
                       plan::Options options) {
  const Mesh mesh = *Mesh::Parse(mesh_text);
  const auto layout =
      mesh::Layout::Parse(mesh.FindAxis("w") ? "{*, h, w, *}" : "{*, h, *, *}", mesh);
  Given given;
  given.inputs.insert_or_assign("x", *layout);
  given.outputs.insert_or_assign("dx", *layout);
  const sharding::Options slow{
      .cost = {.link_bytes_per_second = 1e6, .collective_latency_seconds = 0}};
  auto partitioned = sharding::Shard(windows, mesh, given, slow);
  EXPECT_TRUE(partitioned.ok()) << partitioned.status().ToString();
  auto plan = plan::MakePlan(std::move(*partitioned), options);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return std::move(*plan);
}

}  // namespace meshtrain::device
