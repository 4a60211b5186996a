// What a session allocates for a step is what the step's plan said that it would, counted by the
// null backend over the training step of the main job.
#include <gtest/gtest.h>

#include <list>

#include "runtime/collective/communicator.h"
#include "runtime/device/discrete/discrete_backend.h"
#include "runtime/device/null/null_backend.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/execute/session.h"
#include "tests/runtime/sharding/models.h"

namespace meshtrain::execute {
namespace {

sharding::Given Megatron(const Mesh& mesh) {
  sharding::Given given;
  given.inputs.insert_or_assign("x", *Layout::BatchSharded(mesh, "batch", 2));
  if (!mesh.FindAxis("model")) return given;
  GiveLayer(given, "hidden_1", *Layout::Parse("{*, model}", mesh));
  GiveLayer(given, "hidden_2", *Layout::Parse("{model, *}", mesh));
  return given;
}

class MemoryTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::vector<program::Variable> Declare(Session& session, const program::Program& program,
                                                const Mesh& mesh, const sharding::Given& given) {
    std::vector<program::Variable> variables;
    for (const program::State& s : program.states) {
      variables.emplace_back(s.name, program.type(s.entry));
      const auto layout = given.states.find(s.name);
      const auto replicated = Layout::Replicated(mesh, variables.back().type().rank());
      const Status declared = session.Declare(
          variables.back(), layout != given.states.end() ? layout->second : replicated);
      EXPECT_TRUE(declared.ok()) << declared.ToString();
    }
    return variables;
  }

  // What the null backend holds after variables were declared and `steps` were loaded; the last
  // loading's status.
  std::pair<int64_t, Status> Load(bool isolated, int64_t memory, int steps) {
    const Mesh mesh = *Mesh::Parse(GetParam());
    const program::Program program = sharding::MlpTrainStep();
    const sharding::Given given = Megatron(mesh);
    std::unique_ptr<device::Backend> backend = device::MakeNullBackend(isolated);
    const device::NullCounts& counts = device::CountsOfNullBackend(*backend);
    const auto session = *Session::Create({.memory = memory}, std::move(backend));
    const std::vector<program::Variable> variables = Declare(*session, program, mesh, given);
    std::vector<std::unique_ptr<LoadedStep>> loaded;
    Status last;
    for (int i = 0; i < steps && last.ok(); ++i) {
      auto step = session->Load(program, mesh, variables, {.inputs = given.inputs});
      last = step.status();
      if (step.ok()) loaded.push_back(std::move(*step));
    }
    return {counts.allocated_bytes, last};
  }

  // The peak over all devices of a step that was declared, loaded, fed and run.
  void RunAndCount(bool isolated) {
    const Mesh mesh = *Mesh::Parse(GetParam());
    const program::Program program = sharding::MlpTrainStep();
    const sharding::Given given = Megatron(mesh);
    std::unique_ptr<device::Backend> backend = device::MakeNullBackend(isolated);
    const device::NullCounts& counts = device::CountsOfNullBackend(*backend);
    const auto session = *Session::Create({}, std::move(backend));
    const plan::Plan planned = *session->PlanOnly(program, mesh, given);
    EXPECT_EQ(counts.peak_bytes, 0);

    const std::vector<program::Variable> variables = Declare(*session, program, mesh, given);
    const int64_t devices = isolated ? mesh.size() : 1;
    const auto step = session->Load(program, mesh, variables, {.inputs = given.inputs});
    ASSERT_TRUE(step.ok()) << step.status().message();
    const plan::Plan& plan = (*step)->run_plan();
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      ASSERT_TRUE((*step)->Feed(i, Tensor(program.type(program.inputs[i].value))).ok());
    }
    ASSERT_TRUE((*step)->Run().ok());
    EXPECT_EQ(counts.peak_bytes, devices * plan.peak_bytes);
    EXPECT_EQ(counts.allocated_bytes, counts.peak_bytes);  // a step keeps its memory
    EXPECT_EQ(counts.collective_bytes, plan.CollectiveBytesPerStep());
    EXPECT_EQ((*step)->plan().hash, planned.hash);
    EXPECT_EQ((*step)->plan().peak_bytes, planned.peak_bytes);
    if (isolated) {
      EXPECT_EQ(plan.hash, planned.hash);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Meshes, MemoryTest,
                         ::testing::Values("batch=8", "batch=4,model=2", "batch=3", "batch=1"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '=' || c == ',' ? '_' : c;
                           return name;
                         });

TEST_P(MemoryTest, IsolatedDevicesTakeThePlansPeakEach) { RunAndCount(/*isolated=*/true); }

TEST_P(MemoryTest, DevicesThatShareMemoryTakeThePeakOfWhatRuns) { RunAndCount(/*isolated=*/false); }

// To the byte, and before the step's memory is taken; a second step is counted beside the first.
TEST_P(MemoryTest, WhatDoesNotFitIsRefused) {
  for (const bool isolated : {true, false}) {
    const int64_t variables = Load(isolated, 0, 0).first;
    const int64_t one = Load(isolated, 0, 1).first;
    EXPECT_TRUE(Load(isolated, one, 1).second.ok());
    const auto [held, refused] = Load(isolated, one - 1, 1);
    EXPECT_EQ(held, variables);
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    const std::string numbers = "expected to need at most " + std::to_string(one - 1) +
                                " bytes (what this process may use), got: " + std::to_string(one) +
                                " (" + std::to_string(variables) + " of variables, " +
                                std::to_string(one - variables) +
                                " of this step, 0 of other steps)";
    EXPECT_NE(refused.message().find(numbers), std::string::npos) << refused.message();

    const int64_t two = 2 * one - variables;
    EXPECT_TRUE(Load(isolated, two, 2).second.ok());
    EXPECT_FALSE(Load(isolated, two - 1, 2).second.ok());
  }
}

TEST_P(MemoryTest, AStepThatIsGoneCountsNoMore) {
  const Mesh mesh = *Mesh::Parse(GetParam());
  const program::Program program = sharding::MlpTrainStep();
  const sharding::Given given = Megatron(mesh);
  const auto session =
      *Session::Create({.memory = Load(false, 0, 1).first}, device::MakeNullBackend());
  const std::vector<program::Variable> variables = Declare(*session, program, mesh, given);
  for (int i = 0; i < 3; ++i) {
    const auto step = session->Load(program, mesh, variables, {.inputs = given.inputs});
    EXPECT_TRUE(step.ok()) << step.status().ToString();
  }
}

// A process of a job of two whose memory the other sees. Steps are loaded with it, not run.
class SeenMemory final : public collective::Communicator {
  using GroupCall = collective::GroupCall;
  using Participants = std::span<const collective::Participant>;

 public:
  SeenMemory(const Mesh& mesh, bool seen) : mesh_(mesh), seen_(seen) {}
  const Mesh& mesh() const override { return mesh_; }
  bool remote() const override { return true; }
  std::span<std::byte> BucketMemory(int64_t bytes) override {
    if (!seen_) return {};
    return buckets_.emplace_back(static_cast<size_t>(bytes));
  }
  Status AllReduce(const GroupCall&, mesh::Reduction, int64_t, Participants) override {
    return Unimplemented("all_reduce");
  }
  Status AllGather(const GroupCall&, int64_t, Participants) override {
    return Unimplemented("all_gather");
  }
  Status ReduceScatter(const GroupCall&, mesh::Reduction, int64_t, Participants) override {
    return Unimplemented("reduce_scatter");
  }
  Status AllToAll(const GroupCall&, int64_t, Participants) override {
    return Unimplemented("all_to_all");
  }
  Status Broadcast(const GroupCall&, int64_t, int64_t, Participants) override {
    return Unimplemented("broadcast");
  }
  Status Permute(const GroupCall&, std::span<const int64_t>, int64_t, Participants) override {
    return Unimplemented("permute");
  }
  int64_t BytesSent(int64_t) const override { return 0; }

 private:
  const Mesh mesh_;
  const bool seen_;
  std::list<std::vector<std::byte>> buckets_;
};

// Where the other processes of a host see a step's arena, each step has its own, and each counts.
TEST(MemoryOfProcessesTest, AnArenaThatOthersSeeIsNotShared) {
  const Mesh mesh = *(*Mesh::Parse("batch=2")).OverProcesses(2);
  const program::Program program = [] {
    program::Builder b("far");
    b.Output("y", program::Tanh(program::MatMul(b.Input("x", {mesh::DType::kF32, {64, 32}}),
                                                b.Input("w", {mesh::DType::kF32, {32, 512}}))));
    return *b.Build();
  }();
  // The least limit under which two of it can be there.
  int64_t arena = 0;
  const auto least = [&](bool seen) {
    const auto load = [&](int64_t memory) -> Status {
      SessionOptions options{.threads = 1, .memory = memory};
      options.communicator = [&](const Mesh& m,
                                 uint64_t) -> Result<std::unique_ptr<collective::Communicator>> {
        return std::unique_ptr<collective::Communicator>(new SeenMemory(m, seen));
      };
      MT_ASSIGN_OR_RETURN(const auto session, Session::Create(options));
      sharding::Given given;
      given.inputs.insert_or_assign("x", *Layout::BatchSharded(mesh, "batch", 2));
      MT_ASSIGN_OR_RETURN(const auto one,
                          session->Load(program, mesh, {}, {.inputs = given.inputs}));
      MT_ASSIGN_OR_RETURN(const auto two,
                          session->Load(program, mesh, {}, {.inputs = given.inputs}));
      arena = one->run_plan().arena_bytes;
      return OkStatus();
    };
    int64_t refused = 0, fits = int64_t{1} << 24;
    EXPECT_TRUE(load(fits).ok()) << load(fits).ToString();
    while (refused + 1 < fits) {
      const int64_t middle = (refused + fits) / 2;
      (load(middle).ok() ? fits : refused) = middle;
    }
    return fits;
  };
  const int64_t apart = least(false), seen = least(true);
  ASSERT_GT(arena, 0);
  EXPECT_EQ(seen - apart, arena);
}

// Steps on CPUs leave arena and scratch to each other: a smaller one beside a larger one takes but
// its inputs and outputs.
TEST_P(MemoryTest, StepsThatShareAnArenaTakeTheLargest) {
  const Mesh mesh = *Mesh::Parse(GetParam());
  const program::Program large = sharding::MlpTrainStep();
  program::Builder b("small");
  b.Output("y", program::Tanh(b.Input("x", {mesh::DType::kF32, {16, 8}})) * 2.0);
  const program::Program small = *b.Build();
  const sharding::Given given = Megatron(mesh);
  int64_t variables = 0, arena = 0, kept = 0, scratch = 0;
  const auto load = [&](int64_t memory) -> Status {
    MT_ASSIGN_OR_RETURN(const auto session, Session::Create({.threads = 1, .memory = memory}));
    const std::vector<program::Variable> declared = Declare(*session, large, mesh, given);
    MT_ASSIGN_OR_RETURN(const auto one,
                        session->Load(large, mesh, declared, {.inputs = given.inputs}));
    MT_ASSIGN_OR_RETURN(const auto two, session->Load(small, mesh, {}, {}));
    const plan::Plan &first = one->run_plan(), &second = two->run_plan();
    variables = first.state_bytes;
    arena = first.arena_bytes;
    scratch = one->scratch_bytes();
    kept = first.input_bytes + first.output_bytes + second.input_bytes + second.output_bytes;
    return OkStatus();
  };
  ASSERT_TRUE(load(int64_t{1} << 40).ok());
  ASSERT_GT(arena, 0);
  // Scratch is all that the plans do not say.
  int64_t least = variables + arena + kept, most = least + arena;
  EXPECT_FALSE(load(least - 1).ok());
  ASSERT_TRUE(load(most).ok());
  while (least < most) {
    const int64_t middle = least + (most - least) / 2;
    load(middle).ok() ? most = middle : least = middle + 1;
  }
  // What it needs at least, found by trying, is what it says.
  EXPECT_EQ(least - variables - arena - kept, scratch);
  EXPECT_LT(scratch, arena / 4);
  const Status refused = load(least - 1);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("program small: expected to need at most " +
                                   std::to_string(least - 1) + " bytes"),
            std::string::npos)
      << refused.message();
}

// Devices with memory of their own are counted one by one: each holds the same.
TEST_P(MemoryTest, WhatADeviceDoesNotHoldIsRefused) {
  const Mesh mesh = *Mesh::Parse(GetParam());
  const program::Program program = sharding::MlpTrainStep();
  const sharding::Given given = Megatron(mesh);
  int64_t peak = 0;
  const auto load = [&](int64_t bytes) {
    const auto session =
        *Session::Create({}, *device::MakeDiscreteBackend({.threads = 1, .memory_bytes = bytes}));
    const std::vector<program::Variable> variables = Declare(*session, program, mesh, given);
    auto step = session->Load(program, mesh, variables, {.inputs = given.inputs});
    if (step.ok()) peak = (*step)->run_plan().peak_bytes;
    return step.status();
  };
  // Buffers take whole pages, so the limit is not the peak to the byte.
  EXPECT_TRUE(load(int64_t{1} << 30).ok());
  const Status refused = load(peak - 1);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("(what a device has), got: " + std::to_string(peak)),
            std::string::npos)
      << refused.message();
}

}  // namespace
}  // namespace meshtrain::execute
