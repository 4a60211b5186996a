// What `strategy` makes of a program without a mesh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {
namespace {

using manifest::Manifest;
using manifest::ParameterServer;
using manifest::UpdateSharing;

std::string Job(const std::string& strategy, const std::string& replicas,
                const std::string& program = "") {
  return "kind: TrainingJob\nspec:\n" + (strategy.empty() ? "" : "  strategy: " + strategy + "\n") +
         "  replicaSpecs: {" + replicas + "}\n  program:\n" + program +
         "    data: {train: {idx: {images: a, labels: b}}, batch: 10}\n    model: [flatten, dense: "
         "{units: 1}]\n"
         "    loss: mse\n    optimizer: sgd\n";
}

struct Case {
  std::string name;
  std::string text;
  std::string mesh;  // of the program then
  int64_t processes = 1;
  mesh::DeviceKind kind = mesh::DeviceKind::kCpu;
};

class StrategyTest : public ::testing::TestWithParam<Case> {};

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
  for (int64_t r = 0; r < declared->mesh().size(); ++r) {
    EXPECT_EQ(declared->mesh().devices()[r].process, r / each);
  }
}

const Case kCases[] = {
    {"NothingSaid", Job("", "worker: {replicas: 1}"), ""},
    {"Default", Job("Default", "chief: {replicas: 1}"), ""},
    {"OneDevice", Job("OneDevice", "chief: {replicas: 1}", "    devices: {count: 1}\n"), ""},
    {"Mirrored", Job("Mirrored", "chief: {replicas: 1}", "    devices: {count: 2}\n"), "batch=2"},
    {"MirroredOnOneDevice", Job("Mirrored", "chief: {replicas: 1}"), ""},
    {"CentralStorage", Job("CentralStorage", "chief: {replicas: 1}", "    devices: {count: 4}\n"),
     "batch=4"},
    {"ManyWorkers",
     Job("MultiWorkerMirrored", "Chief: {replicas: 1}, Worker: {replicas: 2}",
         "    devices: {count: 2}\n"),
     "batch=6", 3},
    {"OldNames", Job("MultiWorkerMirrored", "Master: {replicas: 1}, Worker: {replicas: 1}"),
     "batch=2", 2},
    {"ManyWorkersAndNothingSaid", Job("", "worker: {replicas: 2}"), "batch=2", 2},
    {"MirroredBehindWalls",
     Job("Mirrored", "chief: {replicas: 1}", "    devices: {kind: discrete, count: 2}\n"),
     "batch=2", 1, mesh::DeviceKind::kDiscrete},
    {"ManyWorkersBehindWalls",
     Job("MultiWorkerMirrored", "worker: {replicas: 2}", "    devices: {kind: discrete}\n"),
     "batch=2", 2, mesh::DeviceKind::kDiscrete},
    {"TpuOfAPlugin", Job("TPU", "chief: {replicas: 1}", "    devices: {kind: pjrt, count: 8}\n"),
     "batch=8", 1, mesh::DeviceKind::kPjrt},
    {"MirroredOnGpus",
     Job("Mirrored", "chief: {replicas: 1}", "    devices: {kind: cuda, count: 4}\n"), "batch=4", 1,
     mesh::DeviceKind::kCuda},
    {"TpuByCount", Job("TPU", "chief: {replicas: 1}", "    devices: {count: 4}\n"), "batch=4", 1,
     mesh::DeviceKind::kTpu},
    {"TpuBySlice", Job("TPU", "chief: {replicas: 1}", "    devices: {slice: v5e-8}\n"), "batch=8",
     1, mesh::DeviceKind::kTpu},
    {"MirroredBySlice",
     Job("Mirrored", "chief: {replicas: 1}", "    devices: {kind: tpu, slice: v4-8}\n"), "batch=8",
     1, mesh::DeviceKind::kTpu},
    {"EvaluatorStandsOutside",
     Job("MultiWorkerMirrored", "worker: {replicas: 2}, evaluator: {replicas: 1}"), "batch=2", 2},
    {"ParameterServers",
     Job("ParameterServer", "chief: {replicas: 1}, worker: {replicas: 2}, ps: {replicas: 1}"), ""},
    {"Mesh",
     Job("Mesh", "worker: {replicas: 2}",
         "    mesh: {batch: 2, model: 2}\n    layout: {rules: [{match: "
         "'.*kernel', spec: [unsharded, model]}]}\n"),
     "batch=2,model=2", 2},
};

INSTANTIATE_TEST_SUITE_P(Presets, StrategyTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(ParameterServerFieldsTest, ReadsThePartitionersOfTensorFlowByTheirNames) {
  const auto read = [](const std::string& options) {
    const auto manifest = ParseManifest(
        Job("ParameterServer", "chief: {replicas: 1}, worker: {replicas: 3}, ps: {replicas: 2}",
            "    parameter_server: " + options + "\n"),
        "job.yaml");
    EXPECT_TRUE(manifest.ok()) << manifest.status().ToString();
    return manifest.ok() ? manifest->program.parameter_server.value() : ParameterServer{};
  };
  const choice::Choice fixed =
      read("{variable_partitioner: {fixed_shards: {num_shards: 4}}}").partitioner.value();
  EXPECT_EQ(fixed.kind, "fixed_shards");
  EXPECT_EQ(fixed.options.Int("num_shards", 0), 4);
  const choice::Choice min_size =
      read("{variable_partitioner: {min_size: {max_shards: 2}}}").partitioner.value();
  EXPECT_EQ(min_size.kind, "min_size");
  EXPECT_EQ(min_size.options.Int("max_shards", 0), 2);
  const choice::Choice max_size =
      read("{variable_partitioner: {max_size: {max_shard_bytes: 100}}}").partitioner.value();
  EXPECT_EQ(max_size.kind, "max_size");
  EXPECT_EQ(max_size.options.Int("max_shard_bytes", 0), 100);
  const ParameterServer other = read("{staleness_bound: 3, steps_in_flight: 2}");
  EXPECT_EQ(other.partitioner, std::nullopt);
  EXPECT_EQ(other.staleness_bound, 3);
  EXPECT_EQ(other.steps_in_flight, 2);
  const ParameterServer none = read("{}");
  EXPECT_EQ(none.staleness_bound, -1);
  EXPECT_EQ(none.steps_in_flight, std::nullopt);
}

TEST(ParameterServerFieldsTest, TellsEveryMistake) {
  const auto wrong = [](const std::string& strategy, const std::string& options) {
    return ParseManifest(
               Job(strategy, "chief: {replicas: 1}", "    parameter_server: " + options + "\n"),
               "job.yaml")
        .status()
        .message();
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(wrong("ParameterServer", "{variable_partitioner: {min_sise: {}}}"),
              HasSubstr("unknown partitioner `min_sise`, did you mean `min_size`?"));
  EXPECT_THAT(wrong("ParameterServer", "{variable_partitioner: {fixed_shards: {num_shards: 0}}}"),
              HasSubstr("program.parameter_server.variable_partitioner.fixed_shards.num_shards: "
                        "expected a whole number of at "
                        "least 1, got: 0"));
  EXPECT_THAT(wrong("ParameterServer", "{variable_partitioner: {max_size: {}}}"),
              HasSubstr("max_shard_bytes"));
  EXPECT_THAT(wrong("ParameterServer", "{steps_in_flight: 0}"), HasSubstr("steps_in_flight"));
  EXPECT_THAT(wrong("ParameterServer", "{staleness: 1}"), HasSubstr("staleness_bound"));
  EXPECT_THAT(
      wrong("Default", "{staleness_bound: 1}"),
      HasSubstr("program.parameter_server: expected the strategy ParameterServer, got: Default"));
}

// --- Mirrored, MultiWorkerMirrored

Result<Manifest> WithOptions(const std::string& strategy, const std::string& options,
                             const std::string& more = "") {
  return ParseManifest(Job(strategy, "chief: {replicas: 1}",
                           "    devices: {count: 2}\n    " + options + "\n" + more),
                       "job.yaml");
}

TEST(StrategyOptionsTest, AreTensorFlowsByTheirNames) {
  for (const std::string& name : manifest::CrossDeviceOpsNames()) {
    const auto manifest = WithOptions("Mirrored", "mirrored: {cross_device_ops: " + name + "}");
    ASSERT_TRUE(manifest.ok()) << manifest.status().message();
    EXPECT_EQ(manifest->program.mirrored.value().cross_device_ops, name);
    EXPECT_EQ(manifest->program.mirrored->isolated(), name != "Auto" && name != "NCCL");
    EXPECT_FALSE(manifest->program.packing().given());
  }
  const auto way = [](const char* name) {
    return WithOptions("MultiWorkerMirrored",
                       std::string("multi_worker_mirrored: {communication: ") + name + "}");
  };
  for (const char* name : {"AUTO", "RING", "NCCL"}) {
    const auto manifest = way(name);
    ASSERT_TRUE(manifest.ok()) << manifest.status().message();
    EXPECT_EQ(manifest->program.multi_worker_mirrored.value().communication, name);
    EXPECT_EQ(manifest->program.layout.update, UpdateSharing::kAuto);
  }
  EXPECT_EQ(WithOptions("Mirrored", "mirrored: {}")->program.mirrored->cross_device_ops, "Auto");
  EXPECT_FALSE(WithOptions("Mirrored", "")->program.mirrored);
}

TEST(StrategyOptionsTest, PacksAreOfGradientsThatEveryDeviceGetsWhole) {
  const auto packs = WithOptions("Mirrored", "mirrored: {packing: {num_packs: 3}}");
  ASSERT_TRUE(packs.ok()) << packs.status().message();
  EXPECT_EQ(packs->program.packing().num_packs, 3);
  EXPECT_EQ(train::BytesPerPack(PackingOf(packs->program), 100), 34);
  EXPECT_EQ(train::BytesPerPack(PackingOf(packs->program), 0), 1);
  EXPECT_TRUE(packs->program.mirrored->isolated());
  EXPECT_EQ(packs->program.layout.update, UpdateSharing::kCopied);
  EXPECT_EQ(
      train::BytesPerPack(
          PackingOf(WithOptions("Mirrored", "mirrored: {packing: {num_packs: 0}}")->program), 100),
      0);
  const auto bytes = WithOptions("MultiWorkerMirrored",
                                 "multi_worker_mirrored: {packing: {bytes_per_pack: 4096}}");
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  EXPECT_EQ(train::BytesPerPack(PackingOf(bytes->program), 100), 4096);
  EXPECT_EQ(bytes->program.layout.update, UpdateSharing::kCopied);
  EXPECT_EQ(train::BytesPerPack(train::Packing{}, 100), std::nullopt);
}

TEST(StrategyOptionsTest, TellEveryMistakeWithItsPlace) {
  const auto wrong = [](const std::string& strategy, const std::string& options,
                        const std::string& more = "") {
    const auto manifest = WithOptions(strategy, options, more);
    return manifest.ok() ? "" : manifest.status().message();
  };
  EXPECT_EQ(wrong("Mirrored", "mirrored: {cross_device_ops: Rnig}"),
            "job.yaml:7:34: program.mirrored.cross_device_ops: expected one of Auto, NCCL, "
            "HierarchicalCopy, "
            "ReductionToOneDevice, Ring, got: Rnig, did you mean `Ring`?");
  using ::testing::HasSubstr;
  EXPECT_THAT(wrong("Mirrored", "mirrored: {cross_device_op: Ring}"),
              HasSubstr("job.yaml:7:16: program.mirrored: unknown field `cross_device_op`, did you "
                        "mean `cross_device_ops`?"));
  EXPECT_THAT(wrong("MultiWorkerMirrored", "multi_worker_mirrored: {communication: RNIG}"),
              HasSubstr("did you mean `RING`?"));
  EXPECT_EQ(
      wrong("Mirrored", "mirrored: {packing: {num_packs: 1, bytes_per_pack: 1}}"),
      "job.yaml:7:25: program.mirrored.packing: expected num_packs or bytes_per_pack, got: both");
  EXPECT_THAT(wrong("Mirrored", "mirrored: {packing: {}}"),
              HasSubstr("expected num_packs or bytes_per_pack, got: neither"));
  EXPECT_THAT(wrong("Mirrored", "mirrored: {packing: {num_packs: -1}}"),
              HasSubstr("program.mirrored.packing.num_packs"));
  EXPECT_THAT(wrong("Mirrored", "mirrored: {packing: {bytes_per_pack: 0}}"),
              HasSubstr("program.mirrored.packing.bytes_per_pack"));
  EXPECT_EQ(wrong("CentralStorage", "mirrored: {}"),
            "job.yaml:7:5: program.mirrored: expected the strategy Mirrored, got: CentralStorage");
  EXPECT_EQ(wrong("Mirrored", "multi_worker_mirrored: {}"),
            "job.yaml:7:5: program.multi_worker_mirrored: expected the strategy "
            "MultiWorkerMirrored, got: Mirrored");
  EXPECT_THAT(wrong("Mirrored", "mirrored: {cross_device_ops: Ring}", "    numerics: strict\n"),
              HasSubstr("program.mirrored: numerics: strict holds where the devices share memory"));
  EXPECT_THAT(wrong("MultiWorkerMirrored", "multi_worker_mirrored: {packing: {num_packs: 2}}",
                    "    layout: {update: shared}\n"),
              HasSubstr("program.layout.update: shared sums each gradient where it is used"));
}

struct Wrong {
  std::string name;
  std::string text;
  std::string want;
};
class WrongStrategyTest : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongStrategyTest, IsRefused) {
  EXPECT_EQ(ParseManifest(GetParam().text, "job.yaml").status().message(), GetParam().want);
}

INSTANTIATE_TEST_SUITE_P(
    Wrong, WrongStrategyTest,
    ::testing::Values(
        Wrong{"Unknown", Job("Mirorred", "chief: {replicas: 1}"),
              "job.yaml:3:3: spec.strategy: unknown strategy `Mirorred`, did you mean `Mirrored`?"},
        Wrong{"MirroredInManyProcesses", Job("Mirrored", "worker: {replicas: 2}"),
              "job.yaml:3:3: spec.strategy: `Mirrored` trains in one process, got: 2 "
              "(MultiWorkerMirrored takes many)"},
        Wrong{
            "OneDeviceWithTwo",
            Job("OneDevice", "chief: {replicas: 1}", "    devices: {count: 2}\n"),
            "job.yaml:3:3: spec.strategy: `OneDevice` trains on one device, got: devices.count: 2"},
        Wrong{"TpuOnCpus", Job("TPU", "worker: {replicas: 1}", "    devices: {kind: cpu}\n"),
              "job.yaml:3:3: spec.strategy: `TPU` trains on devices of kind tpu, got: "
              "devices.kind: cpu"},
        Wrong{"TpusInManyProcesses",
              Job("TPU", "worker: {replicas: 2}", "    devices: {count: 4}\n"),
              "job.yaml:6:5: program.devices.kind: expected cpu or discrete in 2 processes: "
              "collectives of a plugin's devices do not leave their process, got: tpu"},
        Wrong{"TpuOnGpus", Job("TPU", "worker: {replicas: 1}", "    devices: {kind: cuda}\n"),
              "job.yaml:3:3: spec.strategy: `TPU` trains on devices of kind tpu, got: "
              "devices.kind: cuda"},
        Wrong{"ASliceOfManyHosts",
              Job("TPU", "chief: {replicas: 1}", "    devices: {slice: v5e-16}\n"),
              "job.yaml:6:22: program.devices.slice: expected one of v4-8, v5e-1, v5e-4, v5e-8, "
              "v5p-8, v6e-1, v6e-4, v6e-8, got: v5e-16, did you mean `v5e-1`?"},
        Wrong{"ASliceOfNoTpus",
              Job("Mirrored", "chief: {replicas: 1}",
                  "    devices: {kind: pjrt, count: 8, slice: v5e-8}\n"),
              "job.yaml:6:44: program.devices.slice: expected devices of kind tpu beside a slice, "
              "got: pjrt"},
        Wrong{"ASliceOfOtherSize",
              Job("", "chief: {replicas: 1}",
                  "    devices: {kind: tpu, slice: v5e-8}\n    mesh: {batch: 2}\n"),
              "job.yaml:5:33: program.devices.slice: expected a slice of the 2 devices that a "
              "process uses, got: v5e-8 of 8"},
        Wrong{"ASliceForOneDevice",
              Job("OneDevice", "chief: {replicas: 1}", "    devices: {kind: tpu, slice: v5e-8}\n"),
              "job.yaml:3:3: spec.strategy: `OneDevice` trains on one device, got: devices.slice: "
              "v5e-8, of 8"},
        Wrong{"PjrtInManyProcesses",
              Job("MultiWorkerMirrored", "worker: {replicas: 2}", "    devices: {kind: pjrt}\n"),
              "job.yaml:6:21: program.devices.kind: expected cpu or discrete in 2 processes: "
              "collectives of a plugin's devices do not leave their process, got: pjrt"},
        Wrong{"AnOrderOfSumsOnPjrt",
              Job("Mirrored", "chief: {replicas: 1}",
                  "    devices: {kind: pjrt, count: 2}\n    mirrored: {cross_device_ops: Ring}\n"),
              "job.yaml:7:34: program.mirrored.cross_device_ops: expected Auto on devices of kind "
              "pjrt, whose plugin makes their sums, got: Ring"},
        Wrong{"StrictOnDevicesThatShareNothing",
              Job("Mirrored", "chief: {replicas: 1}",
                  "    devices: {kind: discrete, count: 2}\n    numerics: strict\n"),
              "job.yaml:7:5: program.numerics: strict holds where the devices share memory: "
              "expected fast on devices of kind discrete, got: strict"},
        Wrong{"MeshWithoutOne", Job("Mesh", "chief: {replicas: 1}"),
              "job.yaml:3:3: spec.strategy: the strategy Mesh needs program.mesh, got: none"},
        Wrong{"StrategyAndMesh", Job("Mirrored", "chief: {replicas: 1}", "    mesh: {batch: 2}\n"),
              "job.yaml:3:3: spec.strategy: `Mirrored` makes its own mesh: expected no "
              "program.mesh beside it, or the "
              "strategy Mesh"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace meshtrain::recipe
