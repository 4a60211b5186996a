#include "tests/contract/backend_suite.h"

#include <cmath>
#include <limits>

#include "runtime/program/ops.h"
#include "tests/contract/backend_programs.h"
#include "tests/runtime/sharding/models.h"

namespace meshtrain::device {
namespace {

using mesh::DType;
using mesh::Layout;
using mesh::Mesh;
using meshtrain::testing::StepInput;
using meshtrain::testing::StepResult;
using program::Builder;
using program::Program;
using program::Value;
using program::Variable;
using sharding::Given;

}  // namespace

bool Fits(const Backend& backend, const std::string& mesh_text) {
  const int devices = backend.traits().devices;
  return devices == 0 || Mesh::Parse(mesh_text)->size() <= devices;
}

namespace {

// --- memory

TEST_P(BackendSuite, BuffersAreZeroAndAligned) {
  const auto backend = GetParam().make();
  const int device = Fits(*backend, "a=2") ? 1 : 0;
  for (const int64_t bytes : {0, 1, 63, 64, 100003}) {
    const mesh::TensorType type{DType::kU8, {bytes}};
    const auto buffer = backend->Allocate(device, type);
    ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
    EXPECT_EQ((*buffer)->bytes(), bytes);
    EXPECT_EQ((*buffer)->type(), type);
    EXPECT_EQ((*buffer)->device(), device);
    if (!backend->traits().host_memory) {
      EXPECT_EQ((*buffer)->host(), nullptr);
    }
    std::vector<std::byte> out(bytes, std::byte{1});
    ASSERT_TRUE(backend->CopyOut(**buffer, out).ok());
    EXPECT_EQ(out, std::vector<std::byte>(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>((*buffer)->host()) % 64, 0u);
  }
  EXPECT_EQ(backend->Allocate(0, {DType::kU8, {-1}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(backend->Allocate(-1, {DType::kU8, {1}}).status().code(), StatusCode::kInvalidArgument);
  if (const int devices = backend->traits().devices; devices > 0) {
    EXPECT_EQ(backend->Allocate(devices, {DType::kU8, {1}}).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST_P(BackendSuite, CopiesStayInsideBuffers) {
  const auto backend = GetParam().make();
  const auto buffer = *backend->Allocate(0, {DType::kU8, {8}});
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
    if (!Fits(*backend, mesh)) continue;
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
  if (!backend->traits().communicators) GTEST_SKIP() << "its collectives are its own";
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
                  {.seed = seed, .steps = 5, .bytes_sent = &bytes, .calls_overlapped = &calls});
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      ExpectNear(*got, *want, 0);
      EXPECT_EQ(bytes, beside.CollectiveBytesPerStep());
      EXPECT_GT(calls, 0);
    }
  }
}

// What a step that is bad says; it changed no state, on any device.
std::string BadStep(Backend& backend, const plan::Plan& plan, const StepInput& input) {
  meshtrain::testing::Arrays left;
  const auto bad = RunPlan(backend, plan, input, {.left_states = &left});
  EXPECT_EQ(bad.status().code(), StatusCode::kAborted) << bad.status().ToString();
  EXPECT_EQ(left.size(), input.states.size());
  for (const auto& [name, state] : left) EXPECT_EQ(state.at, input.states.at(name).at) << name;
  return std::string(bad.status().message());
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
    if (!Fits(*backend, mesh)) continue;
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
    EXPECT_NE(BadStep(*backend, plan, input).find("loss"), std::string::npos);
  }
}

// What a guard looks at may be no op's result.
TEST_P(BackendSuite, AStateThatIsNotFiniteIsNotChanged) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  for (const bool computes : {true, false}) {
    Builder b("guarded");
    Builder::Scope scope(b);
    const Variable w("w", {DType::kF32, {4}});
    const Value x = b.Input("x", {DType::kF32, {4}});
    b.Output("w", b.Read(w));
    program::Assign(w, computes ? x * x : x);
    const Program program = *b.Build();
    const plan::Plan plan = PlanOf(program, "", {}, {.finite_outputs = {"w"}});
    ASSERT_GE(plan.guard_step, 0);
    StepInput input = InputFor(program, 2);
    const auto good = RunPlan(*backend, plan, input);
    ASSERT_TRUE(good.ok()) << good.status().ToString();
    ExpectNear(*good, *meshtrain::testing::Interpret(program, input), 1e-6);
    input.states["w"].at[3] = std::numeric_limits<double>::infinity();
    BadStep(*backend, plan, input);
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
      if (!Fits(*backend, mesh_text)) continue;
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
        SCOPED_TRACE("element " + std::to_string(&value - input.inputs["x"].at.data()));
        BadStep(*backend, plan, input);
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
  const auto small = *backend->Allocate(0, {DType::kF32, {3}}),
             fits = *backend->Allocate(0, {DType::kF32, {4}}),
             out_fits = *backend->Allocate(0, {DType::kF32, {4}});
  const auto run = [&](std::vector<Buffer*> in, std::vector<Buffer*> out) {
    const DeviceBuffers device{.inputs = std::move(in), .outputs = std::move(out)};
    return executable->Run({&device, 1});
  };
  EXPECT_TRUE(run({fits.get()}, {out_fits.get()}).ok());
  if (!backend->traits().shared_memory && Fits(*backend, "a=2")) {
    const auto elsewhere = *backend->Allocate(1, {DType::kF32, {4}});
    EXPECT_EQ(run({elsewhere.get()}, {out_fits.get()}).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(run({fits.get()}, {elsewhere.get()}).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(run({small.get()}, {fits.get()}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run({fits.get()}, {small.get()}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run({fits.get(), fits.get()}, {fits.get()}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run({}, {fits.get()}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(executable->Run({}).code(), StatusCode::kInvalidArgument);
}

TEST_P(BackendSuite, CollectivesThatLeaveTheProcessNeedACommunicator) {
  const auto backend = GetParam().make();
  if (!Fits(*backend, "batch=2")) GTEST_SKIP() << "one device";
  Builder b("sum");
  b.Output("y", program::ReduceSum(b.Input("x", {DType::kF32, {4}})));
  const Program program = *b.Build();
  const plan::Plan plan = PlanOf(program, "batch=2", FirstDimension(program, "batch=2"));
  const int64_t both[] = {0, 1}, one[] = {0};
  EXPECT_TRUE(backend->Compile(plan, both, nullptr).ok());
  EXPECT_EQ(backend->Compile(plan, one, nullptr).status().code(), StatusCode::kInvalidArgument);
}

// Copies and steps are enqueued, and each sees what those before it left; what was asked to go goes
// after them.
TEST_P(BackendSuite, WorkIsDoneInTheOrderOfTheCalls) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  Builder b("twice");
  Builder::Scope scope(b);
  const Variable n("n", {DType::kI64, {1000}});
  program::Assign(n, b.Read(n) * 2.0);
  b.Output("was", b.Input("x", {DType::kI64, {1000}}) + b.Read(n));
  const plan::Plan plan = PlanOf(*b.Build(), "", {});
  const int64_t rank = 0;
  const auto executable = *backend->Compile(plan, {&rank, 1}, nullptr);
  const mesh::TensorType type{DType::kI64, {1000}};
  const auto state = *backend->Allocate(0, type), out = *backend->Allocate(0, type);
  std::vector<std::unique_ptr<Buffer>> copies;
  std::vector<int64_t> ones(1000, 1), got(1000);
  const int elsewhere = Fits(*backend, "a=2") ? 1 : 0;
  ASSERT_TRUE(backend->CopyIn(std::as_bytes(std::span(ones)), *state).ok());
  for (int64_t step = 0; step < 5; ++step) {
    auto in = *backend->Allocate(0, type);  // gone before the step has ended
    std::vector<int64_t> host(1000, 100 * step);
    ASSERT_TRUE(backend->CopyIn(std::as_bytes(std::span(host)), *in).ok());
    std::fill(host.begin(), host.end(), -1);  // CopyIn has taken what it needs
    const DeviceBuffers device{
        .inputs = {in.get()}, .states = {state.get()}, .outputs = {out.get()}};
    ASSERT_TRUE(executable->Enqueue({&device, 1}).ok());
    copies.push_back(*backend->Allocate(elsewhere, type));
    ASSERT_TRUE(backend->Copy(*out, *copies.back()).ok());
  }
  for (int64_t step = 0; step < 5; ++step) {
    ASSERT_TRUE(backend->CopyOut(*copies[step], std::as_writable_bytes(std::span(got))).ok());
    // The output reads the state after its update.
    EXPECT_EQ(got, std::vector<int64_t>(1000, 100 * step + (int64_t{2} << step)));
  }
  EXPECT_TRUE(executable->Wait().ok());
  const auto other = *backend->Allocate(0, {DType::kI64, {999}});
  EXPECT_EQ(backend->Copy(*out, *other).code(), StatusCode::kInvalidArgument);
}

TEST_P(BackendSuite, AStepThatFailedIsToldOnce) {
  if (!GetParam().computes) GTEST_SKIP() << "computes nothing";
  const auto backend = GetParam().make();
  Builder b("guarded");
  Builder::Scope scope(b);
  const Variable w("w", {DType::kF32, {}});
  const Value x = b.Input("x", {DType::kF32, {}});
  program::Assign(w, b.Read(w) + x);
  b.Output("y", x + 0.0);
  const plan::Plan plan = PlanOf(*b.Build(), "", {}, {.finite_outputs = {"y"}});
  const int64_t rank = 0;
  const auto executable = *backend->Compile(plan, {&rank, 1}, nullptr);
  const mesh::TensorType scalar{DType::kF32, {}};
  const auto state = *backend->Allocate(0, scalar), in = *backend->Allocate(0, scalar),
             out = *backend->Allocate(0, scalar);
  const DeviceBuffers device{.inputs = {in.get()}, .states = {state.get()}, .outputs = {out.get()}};
  const auto feed = [&](float value) {
    return backend->CopyIn(std::as_bytes(std::span(&value, 1)), *in);
  };
  ASSERT_TRUE(feed(1).ok());
  EXPECT_TRUE(executable->Run({&device, 1}).ok());
  ASSERT_TRUE(feed(std::numeric_limits<float>::infinity()).ok());
  ASSERT_TRUE(executable->Enqueue({&device, 1}).ok());
  EXPECT_EQ(executable->Wait().code(), StatusCode::kAborted);
  EXPECT_TRUE(executable->Wait().ok());
  ASSERT_TRUE(feed(2).ok());
  EXPECT_TRUE(executable->Run({&device, 1}).ok());
  float value = 0;
  ASSERT_TRUE(backend->CopyOut(*state, std::as_writable_bytes(std::span(&value, 1))).ok());
  EXPECT_EQ(value, 3);
}

}  // namespace
}  // namespace meshtrain::device
