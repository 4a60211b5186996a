// Compiling for TPUs that are not there, with a plugin in libtpu's place; libtpu itself:
// tests/e2e/cli/tpu_aot_test.py.
#include "runtime/device/pjrt/ahead.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "runtime/device/pjrt/lowering.h"
#include "runtime/program/ops.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::device {
namespace {

TEST(TpuTargetTest, EachNameReadsAsItself) {
  std::set<std::string> topologies;
  for (const mesh::TpuSlice& slice : mesh::TpuSlices()) {
    const auto read = ParseTpuTarget("tpu:" + std::string(slice.name));
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    EXPECT_EQ(read->name, slice.name);
    EXPECT_TRUE(topologies.insert(LibtpuTopology(*read)).second) << slice.name;
  }
  EXPECT_TRUE(topologies.contains("v5e:2x4"));
}

TEST(TpuTargetTest, AnUnknownOneIsToldTheKnownOnesAndTheNearest) {
  for (const std::string text : {"tpu:v5e8", "v5e-8", "tpu:v5e-7"}) {
    const Status status = ParseTpuTarget(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.origin(), Origin::kManifest);
    const std::string& said = status.message();
    EXPECT_NE(said.find("target: expected one of tpu:v4-8, "), std::string::npos) << said;
    EXPECT_NE(said.find(", got: " + text + ", did you mean `tpu:v5e-"), std::string::npos) << said;
  }
  EXPECT_NE(ParseTpuTarget("gpu").status().message().find("tpu:v6e-256, got: gpu"),
            std::string::npos);
}

class AheadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TMPDIR", folder_.path().c_str(), 1);
    ::unsetenv("MT_AHEAD");
    plan_ = PlanOn("batch=4");
  }
  void TearDown() override {
    ::unsetenv("TMPDIR");
    // What the plugin is told, and where it may write, is its process's alone.
    for (const char* name : {"TPU_SKIP_MDS_QUERY", "TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE",
                             "ALLOW_MULTIPLE_LIBTPU_LOAD", "TPU_LOG_DIR"}) {
      EXPECT_EQ(std::getenv(name), nullptr) << name;
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }

  static plan::Plan PlanOn(const std::string& mesh_text) {
    program::Builder b("step");
    const program::Builder::Scope scope(b);
    b.Output("y", program::ReduceSum(b.Input("x", {mesh::DType::kF32, {8, 4}})));
    const mesh::Mesh mesh = *mesh::Mesh::Parse(mesh_text);
    sharding::Given given;
    given.inputs.insert_or_assign("x", *mesh::Layout::BatchSharded(mesh, "batch", 2));
    return *plan::MakePlan(*sharding::Shard(*b.Build(), mesh, given), {.fuse = false});
  }

  Result<Ahead> Compile(const std::string& library, const std::string& target = "tpu:v5e-4",
                        Duration longest = std::chrono::minutes(1)) const {
    const AheadProgram programs[] = {{"training", &plan_}, {"evaluation", &plan_}};
    return CompileAhead({.library = library, .target = *ParseTpuTarget(target), .longest = longest},
                        programs);
  }

  void ExpectRefused(const Status& status, StatusCode code, const std::string& words) const {
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }

  const testing_folder::TempFolder folder_;
  plan::Plan plan_;
};

TEST_F(AheadTest, GivesTheSizesOfEachProgram) {
  const auto ahead = Compile(MT_PLUGIN_AHEAD);
  ASSERT_TRUE(ahead.ok()) << ahead.status().ToString();
  EXPECT_EQ(ahead->devices, 4);
  EXPECT_EQ(ahead->api.find("0."), 0u) << ahead->api;
  ASSERT_EQ(ahead->sizes.size(), 2u);
  for (const CompiledSizes& sizes : ahead->sizes) {
    EXPECT_EQ(sizes.code, static_cast<int64_t>(pjrt::Lower(plan_)->text.size()));
    EXPECT_EQ(sizes.arguments, 4096);
    EXPECT_EQ(sizes.outputs, 1536);
    EXPECT_EQ(sizes.in_place, 1024);
    EXPECT_EQ(sizes.temporary, 512);
  }
}

TEST_F(AheadTest, SaysWhatIsWrongWithTheLibrary) {
  ExpectRefused(Compile("").status(), StatusCode::kFailedPrecondition,
                "target tpu:v5e-4: expected libtpu, named by MESHTRAIN_LIBTPU "
                "(scripts/install-libtpu fetches it), got: none");
  ExpectRefused(Compile("/no/libtpu.so").status(), StatusCode::kNotFound,
                "expected a plugin at /no/libtpu.so, got: no such file");
  const Status other = Compile(MT_PLUGIN_OF_OTHER_VERSION).status();
  ExpectRefused(other, StatusCode::kFailedPrecondition, "or one close to it, got: 7.1");
  EXPECT_EQ(other.origin(), Origin::kManifest);
}

TEST_F(AheadTest, AMeshOfAnotherSizeThanTheTargetIsRefused) {
  ExpectRefused(Compile(MT_PLUGIN_AHEAD, "tpu:v5e-8").status(), StatusCode::kInvalidArgument,
                "target tpu:v5e-8: expected a mesh of its 8 devices, got: 4 (batch=4");
  // What this library does not know, another version may.
  plan_ = PlanOn("batch=8");
  ExpectRefused(Compile(MT_PLUGIN_AHEAD, "tpu:v4-8").status(), StatusCode::kInternal,
                "the environment of a machine with TPUs");
  plan_ = PlanOn("batch=4");
  ::setenv("MT_AHEAD", "devices", 1);
  ExpectRefused(Compile(MT_PLUGIN_AHEAD).status(), StatusCode::kInternal,
                "topology v5e:2x2: expected 4 devices, got: 3");
}

TEST_F(AheadTest, ACompilerThatFailsIsNamedWithTheProgram) {
  ::setenv("MT_AHEAD", "refuse", 1);
  const Status refused = Compile(MT_PLUGIN_AHEAD).status();
  ExpectRefused(refused, StatusCode::kFailedPrecondition,
                "target tpu:v5e-4: evaluation: PJRT_Compile: cannot compile this");
  EXPECT_EQ(refused.origin(), Origin::kManifest);
  ::setenv("MT_AHEAD", "abort", 1);
  ExpectRefused(Compile(MT_PLUGIN_AHEAD).status(), StatusCode::kInternal,
                "expected a compiled program, got: the end of its process by signal 6: F1125 "
                "00:00:00.000 1 compiler.cc:7] Check failed: it is a toaster");
  ::setenv("MT_AHEAD", "leave", 1);
  ExpectRefused(Compile(MT_PLUGIN_AHEAD).status(), StatusCode::kInternal,
                "evaluation: " MT_PLUGIN_AHEAD
                ": expected a compiled program, got: the end of its process by exit code 3");
  ::setenv("MT_AHEAD", "hang", 1);
  ExpectRefused(Compile(MT_PLUGIN_AHEAD, "tpu:v5e-4", std::chrono::seconds(1)).status(),
                StatusCode::kDeadlineExceeded, "expected an answer within 1 s, got: none");
}

}  // namespace
}  // namespace meshtrain::device
