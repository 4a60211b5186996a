// What is refused, in these words; and the mesh of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/program/ops.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain::sharding {
namespace {

using program::Builder;
using program::DType;
using program::Value;
using program::Variable;

program::Program Step(int64_t batch = 8) {
  Builder b("step");
  Builder::Scope scope(b);
  const Variable w("weight", {DType::kF32, {4, 2}});
  b.Output("logits", Softmax(MatMul(b.Input("images", {DType::kF32, {batch, 4}}), w)));
  return *b.Build();
}

std::string Message(const program::Program& program, const Mesh& mesh, const Given& given,
                    const Options& options = {}) {
  const auto p = Shard(program, mesh, given, options);
  return p.ok() ? "accepted" : p.status().message();
}

TEST(ErrorsTest, UnknownNames) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  Given given;
  given.inputs.insert_or_assign("image", *Layout::Parse("{batch, *}", mesh));
  EXPECT_EQ(Message(Step(), mesh, given),
            "layouts: expected the name of an input of the program, got: `image`, did you mean "
            "`images`?");
  given = {};
  given.states.insert_or_assign("kernel", *Layout::Parse("{batch, *}", mesh));
  EXPECT_EQ(Message(Step(), mesh, given),
            "layouts: expected the name of a state of the program, got: `kernel`");
  given = {};
  given.outputs.insert_or_assign("loss", *Layout::Parse("{}", mesh));
  EXPECT_EQ(Message(Step(), mesh, given),
            "layouts: expected the name of an output of the program, got: `loss`");
}

TEST(ErrorsTest, LayoutsThatDoNotFit) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  Given given;
  given.inputs.insert_or_assign("images", *Layout::Parse("{batch}", mesh));
  EXPECT_EQ(Message(Step(), mesh, given),
            "input `images`: expected a layout of rank 2 for f32[8,4], got: {batch}");
  given.inputs.insert_or_assign("images", *Layout::Parse("{rows, *}", *Mesh::Parse("rows=4")));
  EXPECT_EQ(Message(Step(), mesh, given),
            "input `images`: expected a layout on mesh `batch=4`, got one on `rows=4`");
  const Mesh other =
      *Mesh::Create(mesh.axes(), {{.index = 4}, {.index = 5}, {.index = 6}, {.index = 7}});
  given.inputs.insert_or_assign("images", *Layout::Parse("{batch, *}", other));
  EXPECT_EQ(
      Message(Step(), mesh, given),
      "input `images`: expected a layout on mesh `batch=4 on cpu:0, cpu:1, cpu:2, cpu:3`, got "
      "one on `batch=4 on cpu:4, cpu:5, cpu:6, cpu:7`");
  given = {};
  given.states.insert_or_assign("weight", *Layout::Parse("{*, *} sum(batch)", mesh));
  EXPECT_EQ(
      Message(Step(), mesh, given),
      "state `weight`: expected a layout without a pending reduction, got: {*, *} sum(batch)");
}

TEST(ErrorsTest, UnevenShardsWhereRefused) {
  const Mesh mesh = *Mesh::Parse("batch=8");
  Given given;
  given.inputs.insert_or_assign("images", *Layout::Parse("{batch, *}", mesh));
  EXPECT_EQ(Message(Step(12), mesh, given), "accepted");
  EXPECT_EQ(Message(Step(12), mesh, given, {.refuse_uneven = true}),
            "input `images`: dimension 0 of f32[12,4] over axis `batch`: expected a multiple of 8 "
            "(uneven shards are "
            "refused), got: 12");
  EXPECT_EQ(Message(Step(16), mesh, given, {.refuse_uneven = true}), "accepted");
}

// A split that nobody gave does not become uneven either.
TEST(ErrorsTest, RefusingUnevenShardsKeepsThePlannerFromThem) {
  const Mesh mesh = *Mesh::Parse("model=3");
  Builder b("step");
  Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {8, 6}});
  b.Output("y", Reshape(MatMul(x, program::Fill({6, 8}, 1.0)), {2, 4, 8}));
  Given given;
  given.inputs.insert_or_assign("x", *Layout::Parse("{*, model}", mesh));
  const auto p = Shard(*b.Build(), mesh, given, {.refuse_uneven = true});
  ASSERT_TRUE(p.ok()) << p.status().ToString();
  for (size_t v = 0; v < p->layouts.size(); ++v) {
    EXPECT_TRUE(p->layouts[v].IsEven(p->global_dims[v]));
  }
}

TEST(ErrorsTest, SilentReplicationNamesTheAlternatives) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  Given given;
  given.inputs.insert_or_assign("images", *Layout::Parse("{batch, *}", mesh));
  const std::string message = Message(Step(1024), mesh, given, {.replication_limit_bytes = 8192});
  EXPECT_THAT(
      message,
      ::testing::MatchesRegex(
          "silent replication: %[0-9]+ f32.1024,2. of softmax at errors_test.cc:[0-9]+, split as "
          "\\{batch, \\*\\}, would be gathered over `batch`, so that 8.19 [kK]B of it lie on every "
          "device, for output logits is returned replicated; expected: a layout that keeps it "
          "split "
          "\\(a layout for output `logits`\\), or in C\\+\\+ a replication_limit_bytes above that, "
          "got: 8.19 [kK]B"));
  // Asked for, it is no mistake.
  given.outputs.insert_or_assign("logits", Layout::Replicated(mesh, 2));
  EXPECT_EQ(Message(Step(1024), mesh, given, {.replication_limit_bytes = 8192}), "accepted");
  // Nor when it stays split.
  given.outputs.insert_or_assign("logits", *Layout::Parse("{batch, *}", mesh));
  EXPECT_EQ(Message(Step(1024), mesh, given, {.replication_limit_bytes = 8192}), "accepted");
}

// One vector backwards, of which every device has a part: it is needed whole.
program::Program Vector(int64_t classes) {
  Builder b("step");
  Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {classes}});
  Builder::NameScope layer(b, "logits");
  const Variable bias("logits.bias", {DType::kF32, {classes}});
  b.Output("y", ReduceSum(Reverse(Reverse(x, {0}) + Reverse(bias, {0}), {0})));
  return *b.Build();
}

Given OverBatch(const Mesh& mesh, const std::string& bias) {
  Given given;
  given.inputs.insert_or_assign("x", *Layout::Parse("{batch}", mesh));
  given.states.insert_or_assign("logits.bias", *Layout::Parse(bias, mesh));
  return given;
}

TEST(ErrorsTest, SilentReplicationForAnOpNamesItsLineAndWhatTheUserCanChange) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  const Options options{.replication_limit_bytes = 1000};
  Given given = OverBatch(mesh, "{*}");
  EXPECT_THAT(
      Message(Vector(4096), mesh, given, options),
      ::testing::MatchesRegex(
          "silent replication: %0 f32.4096. of input x, split as \\{batch\\}, would be "
          "gathered .* for input 0 of reverse \\(logits\\) at errors_test.cc:[0-9]+; expected: a "
          "layout that keeps it split \\(another layout of input `x`, in a manifest layout.inputs, "
          "or a Relayout of it before that op\\), .*"));
  // Asked for whole, it is no mistake; then the next one shows.
  given = OverBatch(mesh, "{batch}");
  given.inputs.insert_or_assign("x", *Layout::Parse("{*}", mesh));
  EXPECT_THAT(
      Message(Vector(4096), mesh, given, options),
      ::testing::MatchesRegex(".* of state logits.bias, .*\\(another layout of state "
                              "`logits.bias`, in a manifest a rule of layout.rules, as .match: "
                              "logits.bias, spec: .unsharded.., or .*"));
  given = OverBatch(mesh, "{*}");
  given.inputs.insert_or_assign("x", *Layout::Parse("{*}", mesh));
  EXPECT_EQ(Message(Vector(4096), mesh, given, options), "accepted");
}

// What a layer computes lies as its weights make it lie.
TEST(ErrorsTest, SilentReplicationOfAnActivationNamesTheLayer) {
  const Mesh mesh = *Mesh::Parse("model=2");
  Builder b("step");
  Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {16}});
  {
    Builder::NameScope layer(b, "wide");
    const Variable kernel("wide.kernel", {DType::kF32, {4096}});
    b.Output("y", ReduceSum(Reverse(ReduceSum(x) * kernel, {0})));
  }
  Given given;
  given.states.insert_or_assign("wide.kernel", *Layout::Parse("{model}", mesh));
  EXPECT_THAT(
      Message(*b.Build(), mesh, given, {.replication_limit_bytes = 1000}),
      ::testing::MatchesRegex(".* of mul \\(wide\\) at .*\\(another layout of the weights of "
                              "`wide`, in a manifest a rule of layout.rules for `wide.kernel`, "
                              "or .*"));
}

TEST(ErrorsTest, TheReplicationLimitIs64MiB) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  const Given given = OverBatch(mesh, "{*}");
  const int64_t elements = (int64_t{64} << 20) / 4;
  EXPECT_EQ(Message(Vector(elements - 1), mesh, given), "accepted");
  EXPECT_THAT(
      Message(Vector(elements), mesh, given),
      ::testing::MatchesRegex("silent replication: .*gathered .* 67.1 MB of it .*got: 67.1 MB"));
}

// Over one of the axes that split it: a device then has half of it, of which the limit counts.
TEST(ErrorsTest, AGatherOverOneAxisOfTwoIsSilentReplicationToo) {
  const Mesh mesh = *Mesh::Parse("batch=2,model=2");
  Builder b("step");
  Builder::Scope scope(b);
  b.Output("y", Reverse(b.Input("x", {DType::kF32, {64, 512}}), {1}));
  const program::Program program = *b.Build();
  Given given{.outputs_stay = true};
  given.inputs.insert_or_assign("x", *Layout::Parse("{batch, model}", mesh));
  EXPECT_EQ(Message(program, mesh, given, {.replication_limit_bytes = 65537}), "accepted");
  // Of what is refused in any case the least is told; bytes are dear, as those of large values.
  const Options refuses{.cost = {.link_bytes_per_second = 1e5}, .replication_limit_bytes = 65536};
  EXPECT_THAT(
      Message(program, mesh, given, refuses),
      ::testing::MatchesRegex(
          "silent replication: %0 f32.64,512. of input x, split as \\{batch, model\\}, "
          "would be gathered over `model`, so that 65.5 [kK]B of it lie on every device, for "
          "input 0 of reverse at errors_test.cc:[0-9]+; expected: a layout that keeps it "
          "split \\(another layout of input `x`, .*"));
  // Asked for, it is no mistake: here of one axis of two that split one dimension.
  given.inputs.insert_or_assign("x", *Layout::Parse("{model+batch, *}", mesh));
  given.outputs.insert_or_assign("y", *Layout::Parse("{model, *}", mesh));
  EXPECT_EQ(Message(program, mesh, given, {.replication_limit_bytes = 1}), "accepted");
}

// A weight that lies in parts over the batch's axes is gathered where it is used, whatever its
// size: its layout asks for that. In 16 bits it is its cast that is gathered.
TEST(ErrorsTest, AWeightInPartsOverTheBatchIsGatheredAsItsLayoutAsks) {
  const Mesh mesh = *Mesh::Parse("batch=2,model=2");
  const auto step = [&](program::DType dtype) {
    Builder b("step");
    Builder::Scope scope(b);
    const Variable kernel("kernel", {DType::kF32, {64, 32}});
    const Value x = b.Input("x", {dtype, {4096, 64}});
    const Value w = dtype == DType::kF32 ? b.Read(kernel) : program::Cast(kernel, dtype);
    b.Output("y", ReduceSum(MatMul(x, w)));
    return *b.Build();
  };
  Given given;
  given.inputs.insert_or_assign("x", *Layout::Parse("{batch, *}", mesh));
  given.states.insert_or_assign("kernel", *Layout::Parse("{batch, model}", mesh));
  for (const program::DType dtype : {DType::kF32, DType::kBF16}) {
    const auto p = Shard(step(dtype), mesh, given, {.replication_limit_bytes = 1});
    ASSERT_TRUE(p.ok()) << p.status().ToString();
    std::vector<std::string> gathered;
    for (const Reshard& reshard : p->reshards) {
      for (const int i : reshard.ops) {
        if (p->local.ops[i].kind == "all_gather") gathered.push_back(reshard.reason);
      }
    }
    EXPECT_THAT(gathered, ::testing::ElementsAre(::testing::StartsWith("input 1 of matmul")));
  }
  // Over an axis that does nothing else in that op it is not asked for.
  Builder b("step");
  Builder::Scope scope(b);
  b.Output("y", ReduceSum(Reverse(Variable("kernel", {DType::kF32, {64, 32}}), {0})));
  given.inputs.clear();
  EXPECT_THAT(
      Message(*b.Build(), mesh, given, {.replication_limit_bytes = 1}),
      ::testing::MatchesRegex("silent replication: .*over `batch`.*as .match: kernel, spec: "
                              ".unsharded, model.., or .*"));
}

// Rows of neighbours instead of all of them, though one gather takes less time than two exchanges.
TEST(ErrorsTest, TheLimitKeepsWindowsFromGathering) {
  const Mesh mesh = *Mesh::Parse("h=2");
  Builder b("step");
  Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {16, 2}});
  b.Output("y", program::WindowMax(Reshape(x, {1, 16, 2}), {.sizes = {3}}));
  const program::Program program = *b.Build();
  Given given{.outputs_stay = true};
  given.inputs.insert_or_assign("x", *Layout::Parse("{h, *}", mesh));
  const auto kinds = [&](int64_t limit) {
    std::string text;
    const auto p = Shard(program, mesh, given, {.replication_limit_bytes = limit});
    if (!p.ok()) return p.status().message();
    for (const program::Op& op : p->local.ops) {
      if (op.kind == "all_gather" || op.kind == "halo") text += op.kind + " ";
    }
    return text;
  };
  EXPECT_EQ(kinds(int64_t{64} << 20), "all_gather ");
  EXPECT_EQ(kinds(1), "halo ");
}

// What would be refused is not chosen where something else is possible: here the sum of a large
// gradient, not the exchange of small activations that costs less.
TEST(ErrorsTest, TheLimitKeepsThePlannerFromReplicating) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  Builder b("step");
  Builder::Scope scope(b);
  const Variable m("m", {DType::kF32, {1024, 512}});
  const Value x = b.Input("x", {DType::kF32, {16, 1024}});
  const Value dy = b.Input("dy", {DType::kF32, {16, 512}});
  program::AssignAdd(m, MatMul(Transpose(x, {1, 0}), dy));
  const program::Program program = *b.Build();
  Given given;
  given.inputs.insert_or_assign("x", *Layout::Parse("{batch, *}", mesh));
  given.inputs.insert_or_assign("dy", *Layout::Parse("{batch, *}", mesh));
  given.states.insert_or_assign("m", *Layout::Parse("{batch, *}", mesh));
  const auto kinds = [&](int64_t limit) {
    std::string text;
    const auto p = Shard(program, mesh, given, {.replication_limit_bytes = limit});
    if (!p.ok()) return p.status().message();
    for (const program::Op& op : p->local.ops) {
      if (op.kind.starts_with("all_") || op.kind == "reduce_scatter") text += op.kind + " ";
    }
    return text;
  };
  EXPECT_EQ(kinds(int64_t{64} << 20), "all_to_all all_gather ");
  EXPECT_EQ(kinds(30'000), "reduce_scatter ");
}

TEST(ErrorsTest, RelayoutThatDoesNotFitTheMesh) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  Builder b("step");
  Builder::Scope scope(b);
  b.Output("y", Relayout(b.Input("x", {DType::kF32, {8}}), {"model"}));
  EXPECT_THAT(Message(*b.Build(), mesh, {}),
              ::testing::MatchesRegex(
                  "relayout at errors_test.cc:[0-9]+: mesh batch=4: expected one of its axes, got: "
                  "`model`"));
}

TEST(ErrorsTest, UnusedAxis) {
  const Mesh mesh = *Mesh::Parse("batch=4,model=2");
  Given given;
  given.inputs.insert_or_assign("images", *Layout::Parse("{batch, *}", mesh));
  EXPECT_EQ(CheckAxesUsed(mesh, given).message(),
            "mesh `batch=4,model=2`: expected every axis to be used, got: axis `model` in no "
            "layout; split an input or a "
            "variable over `model`, or remove the axis");
  given.states.insert_or_assign("weight", *Layout::Parse("{*, model}", mesh));
  EXPECT_TRUE(CheckAxesUsed(mesh, given).ok());
  EXPECT_TRUE(CheckAxesUsed(*Mesh::Parse("batch=1"), {}).ok());  // one device loses nothing
  Builder b("step");
  Builder::Scope scope(b);
  b.Output("y", Relayout(b.Input("images", {DType::kF32, {8, 4}}), {"batch", "model"}));
  const program::Program wish = *b.Build();
  EXPECT_FALSE(CheckAxesUsed(mesh, {}).ok());
  EXPECT_TRUE(CheckAxesUsed(mesh, {}, &wish).ok());
}

// --- collapse

Mesh MeshOf(std::vector<mesh::Axis> axes, const std::vector<int>& processes) {
  std::vector<mesh::Device> devices;
  std::map<int, int> next;
  for (const int p : processes) devices.push_back({mesh::DeviceKind::kCpu, p, next[p]++});
  return *Mesh::Create(std::move(axes), std::move(devices));
}

TEST(CollapseTest, OneProcessIsOneDevice) {
  const auto mesh = CollapseLocal(*Mesh::Parse("batch=4,model=2"));
  ASSERT_TRUE(mesh.ok());
  EXPECT_EQ(mesh->ToString(), "batch=1,model=1");
  EXPECT_EQ(CollapseLocal(Mesh())->ToString(), "");
}

TEST(CollapseTest, ProcessesKeepWhatIsBetweenThem) {
  const auto rows = CollapseLocal(MeshOf({{"batch", 4}, {"model", 2}}, {0, 0, 0, 0, 1, 1, 1, 1}));
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  EXPECT_EQ(rows->ToString(), "batch=2,model=1");
  EXPECT_EQ(rows->devices()[1].process, 1);
  const auto single = CollapseLocal(MeshOf({{"batch", 2}, {"model", 2}}, {0, 1, 2, 3}));
  EXPECT_EQ(single->ToString(), "batch=2,model=2");
  const auto columns = CollapseLocal(MeshOf({{"batch", 2}, {"model", 2}}, {0, 1, 0, 1}));
  EXPECT_EQ(columns->ToString(), "batch=1,model=2");
}

TEST(CollapseTest, RefusesUnequalBoxes) {
  const auto ragged = CollapseLocal(MeshOf({{"batch", 4}}, {0, 0, 0, 1}));
  EXPECT_EQ(ragged.status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(ragged.status().message(),
            "mesh `batch=4`: expected processes that hold equal boxes of it, got: process 1 with "
            "coordinates 3..3 of axis "
            "`batch`");
  EXPECT_EQ(CollapseLocal(MeshOf({{"batch", 4}}, {0, 1, 0, 1})).status().code(),
            StatusCode::kUnimplemented);
}

TEST(CollapseTest, LayoutsKeepTheirNames) {
  const Mesh mesh = *Mesh::Parse("batch=4,model=2");
  const Layout layout = OnMesh(*Layout::Parse("{batch, model}", mesh), *CollapseLocal(mesh));
  EXPECT_EQ(layout.ToString(), "{batch, model}");
  EXPECT_EQ(*layout.LocalShape({10, 6}), (mesh::Dims{10, 6}));
}

}  // namespace
}  // namespace meshtrain::sharding
