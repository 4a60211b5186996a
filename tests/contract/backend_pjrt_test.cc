// The backend suite on devices of a PJRT plugin, and what a plugin alone can show.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "runtime/device/cpu/philox.h"
#include "runtime/device/pjrt/pjrt_backend.h"
#include "runtime/program/ops.h"
#include "tests/contract/backend_programs.h"
#include "tests/contract/backend_suite.h"
#include "tests/runtime/sharding/models.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::device {
namespace {

constexpr int kDevices = 16;  // a mesh of the suite has 15

std::string PluginPath() {
  const char* path = std::getenv("MESHTRAIN_PJRT_PLUGIN");
  return path == nullptr ? "" : path;
}

std::string Missing() {
  if (!HasPjrt()) return "pjrt did not run: this build has no pjrt_c_api.h";
  if (PluginPath().empty()) return "pjrt did not run: MESHTRAIN_PJRT_PLUGIN names no plugin";
  return "";
}

std::unique_ptr<Backend> Pjrt() { return *BackendOf("pjrt", kDevices); }

INSTANTIATE_TEST_SUITE_P(Pjrt, BackendSuite,
                         ::testing::Values(BackendFactory{"plugin", true, Pjrt, Missing(), false}),
                         BackendName);

class PjrtTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Missing().empty()) GTEST_SKIP() << Missing();
  }
};

std::string Refused(const PjrtOptions& options) {
  const auto made = MakePjrtBackend(options);
  EXPECT_FALSE(made.ok());
  return made.status().message();
}

TEST_F(PjrtTest, SaysWhatIsWrongWithAPlugin) {
  EXPECT_NE(Refused({}).find("expected a plugin, named by MESHTRAIN_PJRT_PLUGIN, got: none"),
            std::string::npos);
  EXPECT_NE(Refused({.plugin = "/no/such/plugin.so"}).find("/no/such/plugin.so, got: no such file"),
            std::string::npos);
  const testing_folder::TempFolder folder;
  const std::string text = folder.path() + "/text.so";
  std::ofstream(text) << "no library";
  EXPECT_NE(Refused({.plugin = text}).find("expected a library, got: "), std::string::npos);
  // A library that is none of PJRT's.
  EXPECT_NE(Refused({.plugin = MT_PLUGIN_WITHOUT_API}).find("which has GetPjrtApi"),
            std::string::npos);
  const std::string other = Refused({.plugin = MT_PLUGIN_OF_OTHER_VERSION});
  EXPECT_NE(other.find("or one close to it, got: 7.1"), std::string::npos) << other;
}

TEST_F(PjrtTest, SaysWhatIsWrongWithOptionsAndDevices) {
  EXPECT_NE(Refused({.plugin = PluginPath(), .options = "cpu_device_count"})
                .find("expected options as name=value,name=value, got: cpu_device_count"),
            std::string::npos);
  if (Pjrt()->traits().devices != kDevices) GTEST_SKIP() << "no plugin of CPUs";
  const std::string few =
      Refused({.plugin = PluginPath(), .options = "cpu_device_count=2", .devices = 3});
  EXPECT_NE(few.find("expected at least 3 devices, got: 2 of cpu"), std::string::npos) << few;
  const auto two = *MakePjrtBackend({.plugin = PluginPath(), .options = "cpu_device_count=2"});
  EXPECT_EQ(two->traits().devices, 2);
  program::Builder b("add");
  b.Output("y", b.Input("x", {mesh::DType::kF32, {4}}) + 1.0);
  const program::Program program = *b.Build();
  const plan::Plan plan = PlanOf(program, "a=3", FirstDimension(program, "a=3"));
  const int64_t ranks[] = {0, 1, 2};
  const Status status = two->Compile(plan, ranks, nullptr).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("expected at most 2 devices"), std::string::npos);
}

TEST_F(PjrtTest, CompiledProgramsAreKeptAndFoundAgain) {
  const testing_folder::TempFolder folder;
  program::Builder b("add");
  b.Output("y", b.Input("x", {mesh::DType::kF32, {4}}) + 1.0);
  const program::Program program = *b.Build();
  const int devices = std::min(2, Pjrt()->traits().devices);
  const std::string mesh = "a=" + std::to_string(devices);
  const plan::Plan plan = PlanOf(program, mesh, FirstDimension(program, mesh));
  const meshtrain::testing::StepInput input = InputFor(program, 3);
  const auto run = [&](const PjrtCounts& want) {
    const auto backend = *MakePjrtBackend(
        {.plugin = PluginPath(), .devices = devices, .cache = folder.path() + "/compiled"});
    const auto got = RunPlan(*backend, plan, input);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    ExpectNear(*got, *meshtrain::testing::Interpret(program, input), 1e-6);
    const PjrtCounts counts = CountsOfPjrtBackend(*backend);
    EXPECT_EQ(counts.compiled, want.compiled);
    EXPECT_EQ(counts.cached, want.cached);
  };
  run({.compiled = 1});
  run({.cached = 1});
  // One that is damaged is made anew: cut off, or one bit of it anywhere.
  const auto kept = [&] {
    return std::filesystem::directory_iterator(folder.path() + "/compiled")->path();
  };
  std::ofstream(kept()) << "damaged";
  run({.compiled = 1});
  for (const double place : {0.0, 0.3, 0.5, 0.7, 1.0}) {
    const auto size = static_cast<double>(std::filesystem::file_size(kept()));
    std::fstream file(kept(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(place * (size - 1)));
    const char byte = static_cast<char>(file.peek() ^ 4);
    file.seekp(file.tellg());
    file.put(byte);
    file.close();
    run({.compiled = 1});
    run({.cached = 1});
  }
}

#ifdef MT_PLUGIN_THAT_FAILS
// A kept program is of the devices that it was compiled for.
TEST_F(PjrtTest, OtherDevicesGetProgramsOfTheirOwn) {
  const testing_folder::TempFolder folder;
  ::setenv("MT_REAL_PLUGIN", PluginPath().c_str(), 1);
  program::Builder b("add");
  b.Output("y", b.Input("x", {mesh::DType::kF32, {4}}) + 1.0);
  const plan::Plan plan = PlanOf(*b.Build(), "", {});
  const auto compiled = [&](const char* kind) {
    ::setenv("MT_SAY_KIND", kind, 1);
    const auto backend = *MakePjrtBackend({.plugin = MT_PLUGIN_THAT_FAILS, .cache = folder.path()});
    const int64_t rank = 0;
    EXPECT_TRUE(backend->Compile(plan, {&rank, 1}, nullptr).ok());
    return CountsOfPjrtBackend(*backend).compiled;
  };
  EXPECT_EQ(compiled("one"), 1);
  EXPECT_EQ(compiled("one"), 0);
  EXPECT_EQ(compiled("another"), 1);
  ::unsetenv("MT_SAY_KIND");
  ::unsetenv("MT_REAL_PLUGIN");
}

// What a compiler refuses it would refuse at the next attempt.
TEST_F(PjrtTest, AProgramThatIsRefusedIsNotTriedAgain) {
  ::setenv("MT_REAL_PLUGIN", PluginPath().c_str(), 1);
  program::Builder b("add");
  b.Output("y", b.Input("x", {mesh::DType::kF32, {4}}) + 1.0);
  const plan::Plan plan = PlanOf(*b.Build(), "", {});
  const auto backend = *MakePjrtBackend({.plugin = MT_PLUGIN_THAT_FAILS});
  // UNKNOWN, INVALID_ARGUMENT, UNIMPLEMENTED and INTERNAL by the numbers that PJRT gives them.
  for (const auto& [code, want] :
       std::vector<std::pair<const char*, StatusCode>>{{"2", StatusCode::kFailedPrecondition},
                                                       {"3", StatusCode::kFailedPrecondition},
                                                       {"12", StatusCode::kFailedPrecondition},
                                                       {"13", StatusCode::kInternal}}) {
    ::setenv("MT_REFUSE_WITH", code, 1);
    const int64_t rank = 0;
    const Status status = backend->Compile(plan, {&rank, 1}, nullptr).status();
    EXPECT_EQ(status.code(), want) << code;
    EXPECT_EQ(status.origin() == Origin::kManifest, want == StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find("PJRT_Client_Compile: the program is no good"),
              std::string::npos)
        << status.message();
  }
  ::unsetenv("MT_REFUSE_WITH");
  ::unsetenv("MT_REAL_PLUGIN");
}
#endif

// The main job's step on 8 devices. How long writing it takes, whatever the plugin then takes, is
// printed; `mlp_bench --kinds` measures it (pjrt_text).
TEST_F(PjrtTest, WhatIsWrittenAndCompiledIsCounted) {
  const auto backend = Pjrt();
  const program::Program program = sharding::MlpTrainStep();
  const int devices = std::min(8, backend->traits().devices);
  const mesh::Mesh mesh = *mesh::Mesh::Parse("batch=" + std::to_string(devices));
  sharding::Given given;
  given.inputs.insert_or_assign("x", *mesh::Layout::BatchSharded(mesh, "batch", 2));
  const plan::Plan plan = *backend->Lower(*sharding::Shard(program, mesh, given), {});
  const int64_t ranks[] = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto executable =
      backend->Compile(plan, std::span(ranks).first(static_cast<size_t>(devices)), nullptr);
  ASSERT_TRUE(executable.ok()) << executable.status().ToString();
  const PjrtCounts counts = CountsOfPjrtBackend(*backend);
  EXPECT_EQ(counts.compiled, 1);
  EXPECT_EQ(counts.cached, 0);
  EXPECT_GT(counts.lowering_seconds, 0);
  EXPECT_GT(counts.compile_seconds, 0);
  std::printf("written in %.1f ms, compiled in %.0f ms\n", counts.lowering_seconds * 1e3,
              counts.compile_seconds * 1e3);
}

// A value that is copied on its device is the same memory until one of the two changes.
TEST_F(PjrtTest, ACopyOfAStateIsItsValueOfThen) {
  const auto backend = Pjrt();
  program::Builder b("count");
  program::Builder::Scope scope(b);
  const program::Variable n("n", {mesh::DType::kI64, {}});
  program::Assign(n, b.Read(n) + 1.0);
  const plan::Plan plan = PlanOf(*b.Build(), "", {});
  const int64_t rank = 0;
  const auto executable = *backend->Compile(plan, {&rank, 1}, nullptr);
  const auto state = *backend->Allocate(0, {mesh::DType::kI64, {}}),
             copy = *backend->Allocate(0, {mesh::DType::kI64, {}});
  const DeviceBuffers device{.inputs = {}, .states = {state.get()}, .outputs = {}};
  ASSERT_TRUE(executable->Run({&device, 1}).ok());
  ASSERT_TRUE(backend->Copy(*state, *copy).ok());
  ASSERT_TRUE(executable->Run({&device, 1}).ok());
  ASSERT_TRUE(executable->Run({&device, 1}).ok());
  const auto value = [&](const Buffer& buffer) {
    int64_t number = 0;
    EXPECT_TRUE(backend->CopyOut(buffer, std::as_writable_bytes(std::span(&number, 1))).ok());
    return number;
  };
  EXPECT_EQ(value(*copy), 1);
  EXPECT_EQ(value(*state), 3);
}

// Of many, a product says first whether there is anything to count.
TEST_F(PjrtTest, WhatIsBeyondALimitIsCountedAmongMany) {
  const auto backend = Pjrt();
  for (const mesh::DType dtype : {mesh::DType::kF32, mesh::DType::kF64}) {
    const double largest = mesh::LargestFinite(dtype), limit = largest / 16;
    const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
    const double beyond = limit * 1.001, within = limit * 0.999;
    program::Builder b("many");
    program::Builder::Scope scope(b);
    b.Output("count", program::CountBeyond(b.Input("x", {dtype, {50, 64}}), limit));
    const plan::Plan plan = PlanOf(*b.Build(), "", {});
    // What lies in the first places, ones in all others.
    const std::vector<std::pair<std::vector<double>, int>> cases = {
        {{}, 0},
        {{limit, -limit}, 0},
        {{beyond}, 1},
        {{-beyond, within, within, within, within}, 1},
        {{within, within, within, within, within, within, within, within, within}, 0},
        {{-within, -within, -within, -within, beyond}, 1},
        {{inf, -inf}, 2},
        {{-largest, -largest, largest, nan, 1, inf}, 5},
        {std::vector<double>(3200, -inf), 3200},
    };
    for (size_t i = 0; i < cases.size(); ++i) {
      // Side by side, down a column, spread.
      for (const size_t stride : {1, 64, 319}) {
        if (cases[i].first.size() * stride > 3200) continue;
        meshtrain::testing::StepInput input;
        meshtrain::testing::Array x({dtype, {50, 64}});
        std::fill(x.at.begin(), x.at.end(), 1.0);
        for (size_t k = 0; k < cases[i].first.size(); ++k) {
          x.at[k * stride] = cases[i].first[k];
        }
        input.inputs.emplace("x", x);
        const auto got = RunPlan(*backend, plan, input);
        ASSERT_TRUE(got.ok()) << got.status().ToString();
        EXPECT_EQ(got->outputs.at("count").at[0], cases[i].second)
            << "case " << i << ", stride " << stride;
      }
    }
  }
}

// Counted in words of 64 bits, the numbers of a tensor of more than 2^31 elements. Its end alone is
// computed: the compiler makes no more of it than is asked for.
TEST_F(PjrtTest, RandomNumbersBeyondPlacesOf32BitsAreTheirPlaces) {
  constexpr int64_t kCount = (int64_t{1} << 35) + 40, kLast = 23;
  program::Builder b("end");
  program::Builder::Scope scope(b);
  const auto end = [&](const program::Value& all) {
    return program::Slice(all, {kCount - kLast}, {kLast});
  };
  b.Output("uniform", end(program::StatelessUniform({kCount}, {22, 23})));
  b.Output("normal", end(program::StatelessNormal({kCount}, {1, 2})));
  const auto got = RunPlan(*Pjrt(), PlanOf(*b.Build(), "", {}), {});
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  std::vector<float> uniform(kLast), normal(kLast);
  cpu::FillUniform(cpu::PhiloxFromSeed(22, 23), 0.0f, 1.0f, kCount - kLast, uniform);
  cpu::FillNormal(cpu::PhiloxFromSeed(1, 2), 0.0f, 1.0f, kCount - kLast, normal);
  for (size_t i = 0; i < kLast; ++i) {
    EXPECT_EQ(static_cast<float>(got->outputs.at("uniform").at[i]), uniform[i]) << i;
    EXPECT_NEAR(static_cast<float>(got->outputs.at("normal").at[i]), normal[i], 2e-6) << i;
  }
}

}  // namespace
}  // namespace meshtrain::device
