// A manifest's strategy is the object that C++ makes.
#include "runtime/trainer/job/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/recipe/step_plan.h"
#include "runtime/trainer/engine.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/worker_server.h"

namespace meshtrain::trainer {
namespace {

using strategy::MeshStrategy;
using strategy::ReplicaStrategy;

manifest::Manifest Job(const std::string& strategy, const std::string& program = "") {
  const std::string text =
      "kind: TrainingJob\nspec:\n" + (strategy.empty() ? "" : "  strategy: " + strategy + "\n") +
      "  replicaSpecs: {worker: {replicas: 1}}\n  program:\n" + program +
      "    data: {train: {idx: {images: a, labels: b}}, batch: 12}\n"
      "    model: [flatten, dense: {units: 1}]\n    loss: mse\n    optimizer: sgd\n    seed: 3\n";
  auto manifest = recipe::ParseManifest(text, "job.yaml");
  EXPECT_TRUE(manifest.ok()) << manifest.status().message();
  return *std::move(manifest);
}

struct Case {
  std::string strategy;
  std::string program;
  std::string name;  // of what is made
  std::string mesh;
  bool replicas = true;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name << " " << c.mesh; }

class JobStrategyTest : public ::testing::TestWithParam<Case> {};

TEST_P(JobStrategyTest, IsWhatCppMakes) {
  const Case& c = GetParam();
  const manifest::Manifest manifest = Job(c.strategy, c.program);
  const recipe::Declared declared = recipe::Declared::Create(manifest.program).value();
  const auto made = MakeMeshStrategy({.threads = 1}, manifest, declared, nullptr);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ((*made)->name(), c.name);
  EXPECT_EQ((*made)->mesh().ToString(), c.mesh);
  EXPECT_EQ((*made)->mesh(), declared.mesh());
  EXPECT_EQ(dynamic_cast<ReplicaStrategy*>(made->get()) != nullptr, c.replicas);
  execute::Session* const session = (*made)->session().value();
  const std::string& kind = session->options().device_kind;
  EXPECT_EQ(kind, mesh::DeviceKindName(manifest.program.devices.kind));
  EXPECT_EQ(session->options().isolated || kind != "cpu", IsIsolated({}, manifest));
  EXPECT_EQ(session->options().threads, 1);
  EXPECT_EQ((*made)->packing().num_packs, recipe::PackingOf(manifest.program).num_packs);
}

// What `meshtrain plan` prints.
TEST_P(JobStrategyTest, RunsTheStepThatIsPlanned) {
  const manifest::Manifest manifest = Job(GetParam().strategy, GetParam().program);
  const recipe::Declared declared = recipe::Declared::Create(manifest.program).value();
  const std::vector<mesh::TensorType> types = {{mesh::DType::kF32, {12, 4, 4}},
                                               {mesh::DType::kF32, {12, 1}}};
  const recipe::StepPlans plans = recipe::StepPlansOf(manifest.program, declared, types).value();
  const plan::Plan want = recipe::StepPlanOf(manifest.program, declared, types).value();
  EXPECT_EQ(plans.asked.hash, want.hash);
  // Devices that share memory act as one.
  EXPECT_EQ(plans.run.partitioned.mesh.size(),
            IsIsolated({}, manifest) ? want.partitioned.mesh.size() : 1);
  EXPECT_EQ(plans.run.hash == want.hash, plans.run.partitioned.mesh == want.partitioned.mesh);
  const auto strategy = MakeMeshStrategy({.threads = 1}, manifest, declared, nullptr).value();
  const auto engine = MakeMeshEngine(*strategy, {.declare_only = true});
  engine->Compile(declared.recipe(), TraceOf(declared));
  const Status prepared = engine->Prepare(types);
  ASSERT_TRUE(prepared.ok()) << prepared.ToString();
  ASSERT_NE(engine->plan(), nullptr);
  EXPECT_EQ(engine->plan()->hash, want.hash);
  EXPECT_EQ(engine->plan()->peak_bytes, want.peak_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, JobStrategyTest,
    ::testing::Values(
        Case{"", "", "MeshStrategy", "", false},
        Case{"",
             "    mesh: {batch: 2, model: 2}\n    layout: {rules: [{match: '.*kernel', spec: "
             "[unsharded, model]}]}\n",
             "MeshStrategy", "batch=2,model=2", false},
        Case{"Mesh", "    mesh: {batch: 4}\n", "MeshStrategy", "batch=4", false},
        Case{"Default", "", "DefaultStrategy", ""}, Case{"OneDevice", "", "OneDeviceStrategy", ""},
        Case{"Mirrored", "    devices: {count: 2}\n", "MirroredStrategy", "batch=2"},
        Case{"Mirrored", "    devices: {count: 3}\n    mirrored: {cross_device_ops: Ring}\n",
             "MirroredStrategy", "batch=3"},
        Case{"Mirrored", "    devices: {count: 2}\n    mirrored: {packing: {num_packs: 2}}\n",
             "MirroredStrategy", "batch=2"},
        Case{"OneDevice", "    devices: {kind: discrete}\n", "OneDeviceStrategy", ""},
        Case{"Mirrored", "    devices: {kind: discrete, count: 2}\n", "MirroredStrategy",
             "batch=2"},
        Case{"Mesh", "    devices: {kind: discrete}\n    mesh: {batch: 4}\n", "MeshStrategy",
             "batch=4", false},
        Case{"CentralStorage", "    devices: {count: 4}\n", "CentralStorageStrategy", "batch=4"},
        Case{"MultiWorkerMirrored", "    devices: {count: 2}\n", "MultiWorkerMirroredStrategy",
             "batch=2"}));

// Its session needs a plugin.
TEST(JobStrategyOnceTest, ATpuIsThePluginsDevices) {
  const manifest::Manifest manifest = Job("TPU", "    devices: {kind: pjrt, count: 4}\n");
  const recipe::Declared declared = recipe::Declared::Create(manifest.program).value();
  const auto made = MakeMeshStrategy({}, manifest, declared, nullptr);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ((*made)->name(), "TPUStrategy");
  EXPECT_EQ((*made)->mesh(), declared.mesh());
  EXPECT_EQ((*made)->mesh().devices()[3], (mesh::Device{mesh::DeviceKind::kPjrt, 0, 3}));
}

TEST(JobStrategyOnceTest, TheCommandLineMayKeepDevicesApart) {
  const manifest::Manifest manifest = Job("Mirrored", "    devices: {count: 2}\n");
  const JobConfig apart{.isolated = true};
  EXPECT_FALSE(IsIsolated({}, manifest));
  EXPECT_TRUE(IsIsolated(apart, manifest));
  const auto made =
      MakeMeshStrategy(apart, manifest, recipe::Declared::Create(manifest.program).value(), nullptr)
          .value();
  EXPECT_TRUE(made->session().value()->options().isolated);
}

// A manifest always has a seed, 0 without a word.
TEST(JobStrategyOnceTest, TheManifestsSeedIsItsOwn) {
  const auto kernel = [](int64_t seed_of_process, int64_t seed) {
    nn::SetRandomSeed(seed_of_process);
    manifest::Manifest manifest = Job("Mirrored", "    devices: {count: 2}\n");
    manifest.program.seed = seed;
    const recipe::Declared declared = recipe::Declared::Create(manifest.program).value();
    const auto strategy = MakeMeshStrategy({.threads = 1}, manifest, declared, nullptr).value();
    const auto engine = MakeMeshEngine(*strategy, {.declare_only = true});
    engine->Compile(declared.recipe(), TraceOf(declared));
    const std::vector<mesh::TensorType> types = {{mesh::DType::kF32, {12, 4, 4}},
                                                 {mesh::DType::kF32, {12, 1}}};
    EXPECT_TRUE(engine->Prepare(types).ok());
    EXPECT_TRUE(engine->BeginAnew({}).ok());
    nn::SetRandomSeed(0);
    const mesh::Tensor value = strategy->Read(engine->programs()->parameters[0]).value();
    return std::vector<float>(value.values<float>().begin(), value.values<float>().end());
  };
  EXPECT_EQ(kernel(1, 3), kernel(2, 3));
  EXPECT_EQ(kernel(1, 0), kernel(2, 0));
  EXPECT_NE(kernel(1, 3), kernel(1, 4));
}

// The command line's bytes were a mesh's alone.
TEST(JobStrategyOnceTest, AParameterWorkersSessionIsWhatTheCommandLineSays) {
  const execute::SessionOptions session =
      WorkerSessionOf({.isolated = true, .threads = 3, .memory = 4096}, {.count = 2});
  EXPECT_EQ(session.device_kind, "cpu");
  EXPECT_EQ(session.devices, 2);
  EXPECT_TRUE(session.isolated);
  EXPECT_EQ(session.threads, 3);
  EXPECT_EQ(session.memory, 4096);
}

}  // namespace
}  // namespace meshtrain::trainer
