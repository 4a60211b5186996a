// What `strategy` makes of a program without a mesh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/spec/spec.h"

namespace meshtrain::spec {
namespace {

std::string Job(const std::string& strategy, const std::string& replicas, const std::string& program = "") {
  return "kind: TrainingJob\nspec:\n" + (strategy.empty() ? "" : "  strategy: " + strategy + "\n") +
         "  replicaSpecs: {" + replicas + "}\n  program:\n" + program +
         "    data: {train: {idx: {images: a, labels: b}}, batch: 10}\n    model: [flatten, dense: {units: 1}]\n"
         "    loss: mse\n    optimizer: sgd\n";
}

struct Case {
  std::string name;
  std::string text;
  std::string mesh;      // of the program then
  int64_t processes = 1;
  mesh::DeviceKind kind = mesh::DeviceKind::kCpu;
};

class StrategyTest : public testing::TestWithParam<Case> {};

TEST_P(StrategyTest, MakesTheMesh) {
  const auto manifest = ParseManifest(GetParam().text, "job.yaml");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  const auto declared = Declared::Create(manifest->program);
  ASSERT_TRUE(declared.ok()) << declared.status().message();
  EXPECT_EQ(declared->mesh().ToString(), GetParam().mesh);
  EXPECT_EQ(manifest->program.processes, GetParam().processes);
  EXPECT_EQ(manifest->program.devices.kind, GetParam().kind);
  // Process-major: as many devices in each.
  const int64_t each = declared->mesh().size() / GetParam().processes;
  for (int64_t r = 0; r < declared->mesh().size(); ++r) EXPECT_EQ(declared->mesh().devices()[r].process, r / each);
}

const Case kCases[] = {
    {"NothingSaid", Job("", "worker: {replicas: 1}"), ""},
    {"Default", Job("Default", "chief: {replicas: 1}"), ""},
    {"OneDevice", Job("OneDevice", "chief: {replicas: 1}", "    devices: {count: 1}\n"), ""},
    {"Mirrored", Job("Mirrored", "chief: {replicas: 1}", "    devices: {count: 2}\n"), "batch=2"},
    {"MirroredOnOneDevice", Job("Mirrored", "chief: {replicas: 1}"), ""},
    {"CentralStorage", Job("CentralStorage", "chief: {replicas: 1}", "    devices: {count: 4}\n"), "batch=4"},
    {"ManyWorkers", Job("MultiWorkerMirrored", "Chief: {replicas: 1}, Worker: {replicas: 2}", "    devices: {count: 2}\n"),
     "batch=6", 3},
    {"OldNames", Job("MultiWorkerMirrored", "Master: {replicas: 1}, Worker: {replicas: 1}"), "batch=2", 2},
    {"ManyWorkersAndNothingSaid", Job("", "worker: {replicas: 2}"), "batch=2", 2},
    {"EvaluatorStandsOutside", Job("MultiWorkerMirrored", "worker: {replicas: 2}, evaluator: {replicas: 1}"), "batch=2", 2},
    {"Tpu", Job("TPU", "worker: {replicas: 2}", "    devices: {count: 4}\n"), "batch=8", 2, mesh::DeviceKind::kTpu},
    {"ParameterServers", Job("ParameterServer", "chief: {replicas: 1}, worker: {replicas: 2}, ps: {replicas: 1}"), ""},
    {"Mesh", Job("Mesh", "worker: {replicas: 2}", "    mesh: {batch: 2, model: 2}\n    layout: {rules: [{match: "
                         "'.*kernel', spec: [unsharded, model]}]}\n"), "batch=2,model=2", 2},
};

INSTANTIATE_TEST_SUITE_P(Presets, StrategyTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(ParameterServerSpecTest, ReadsThePartitionersOfTensorFlowByTheirNames) {
  const auto read = [](const std::string& options) {
    const auto manifest = ParseManifest(Job("ParameterServer", "chief: {replicas: 1}, worker: {replicas: 3}, ps: {replicas: 2}",
                                            "    parameter_server: " + options + "\n"), "job.yaml");
    EXPECT_TRUE(manifest.ok()) << manifest.status().ToString();
    return manifest.ok() ? manifest->program.parameter_server.value() : ParameterServerSpec{};
  };
  EXPECT_EQ(std::get<FixedShardsSpec>(read("{variable_partitioner: {fixed_shards: {num_shards: 4}}}").partitioner).num_shards, 4);
  const auto min_size = std::get<MinSizeSpec>(read("{variable_partitioner: {min_size: {max_shards: 2}}}").partitioner);
  EXPECT_EQ(min_size.min_shard_bytes, 256 << 10);
  EXPECT_EQ(min_size.max_shards, 2);
  const auto max_size = std::get<MaxSizeSpec>(read("{variable_partitioner: {max_size: {max_shard_bytes: 100}}}").partitioner);
  EXPECT_EQ(max_size.max_shard_bytes, 100);
  EXPECT_EQ(max_size.max_shards, 0);
  const ParameterServerSpec other = read("{staleness_bound: 3, steps_in_flight: 2}");
  EXPECT_TRUE(std::holds_alternative<WholeVariables>(other.partitioner));
  EXPECT_EQ(other.staleness_bound, 3);
  EXPECT_EQ(other.steps_in_flight, 2);
  const ParameterServerSpec none = read("{}");
  EXPECT_EQ(none.staleness_bound, -1);
  EXPECT_EQ(none.steps_in_flight, std::nullopt);
}

TEST(ParameterServerSpecTest, TellsEveryMistake) {
  const auto wrong = [](const std::string& strategy, const std::string& options) {
    return ParseManifest(Job(strategy, "chief: {replicas: 1}", "    parameter_server: " + options + "\n"), "job.yaml")
        .status().message();
  };
  using testing::HasSubstr;
  EXPECT_THAT(wrong("ParameterServer", "{variable_partitioner: {min_sise: {}}}"),
              HasSubstr("unknown partitioner `min_sise`, did you mean `min_size`?"));
  EXPECT_THAT(wrong("ParameterServer", "{variable_partitioner: {fixed_shards: {num_shards: 0}}}"),
              HasSubstr("program.parameter_server.variable_partitioner.fixed_shards.num_shards: expected a whole number of at "
                        "least 1, got: 0"));
  EXPECT_THAT(wrong("ParameterServer", "{variable_partitioner: {max_size: {}}}"), HasSubstr("max_shard_bytes"));
  EXPECT_THAT(wrong("ParameterServer", "{steps_in_flight: 0}"), HasSubstr("steps_in_flight"));
  EXPECT_THAT(wrong("ParameterServer", "{staleness: 1}"), HasSubstr("staleness_bound"));
  EXPECT_THAT(wrong("Default", "{staleness_bound: 1}"),
              HasSubstr("program.parameter_server: expected the strategy ParameterServer, got: Default"));
}

struct Wrong {
  std::string name;
  std::string text;
  std::string want;
};
class WrongStrategyTest : public testing::TestWithParam<Wrong> {};

TEST_P(WrongStrategyTest, IsRefused) {
  EXPECT_EQ(ParseManifest(GetParam().text, "job.yaml").status().message(), GetParam().want);
}

INSTANTIATE_TEST_SUITE_P(
    Wrong, WrongStrategyTest,
    testing::Values(
        Wrong{"Unknown", Job("Mirorred", "chief: {replicas: 1}"),
              "job.yaml:3:3: spec.strategy: unknown strategy `Mirorred`, did you mean `Mirrored`?"},
        Wrong{"MirroredInManyProcesses", Job("Mirrored", "worker: {replicas: 2}"),
              "job.yaml:3:3: spec.strategy: `Mirrored` trains in one process, got: 2 (MultiWorkerMirrored takes many)"},
        Wrong{"OneDeviceWithTwo", Job("OneDevice", "chief: {replicas: 1}", "    devices: {count: 2}\n"),
              "job.yaml:3:3: spec.strategy: `OneDevice` trains on one device, got: devices.count: 2"},
        Wrong{"TpuOnCpus", Job("TPU", "worker: {replicas: 1}", "    devices: {kind: cpu}\n"),
              "job.yaml:3:3: spec.strategy: `TPU` trains on devices of kind tpu, got: devices.kind: cpu"},
        Wrong{"MeshWithoutOne", Job("Mesh", "chief: {replicas: 1}"),
              "job.yaml:3:3: spec.strategy: the strategy Mesh needs program.mesh, got: none"},
        Wrong{"StrategyAndMesh", Job("Mirrored", "chief: {replicas: 1}", "    mesh: {batch: 2}\n"),
              "job.yaml:3:3: spec.strategy: `Mirrored` makes its own mesh: expected no program.mesh beside it, or the "
              "strategy Mesh"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace meshtrain::spec
