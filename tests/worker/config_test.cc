// What a worker process makes of its command line.
#include "worker/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "runtime/cluster/contract.h"
#include "runtime/trainer/job/choices.h"

namespace meshtrain::worker {
namespace {

using ::testing::HasSubstr;

class ConfigTest : public ::testing::Test {
 protected:
  ~ConfigTest() override { ::unsetenv(cluster::kEnvProgram.data()); }

  // What it was asked to do; or, in `exit_code`, what it ends with at once, and what it said.
  std::optional<trainer::JobConfig> Parse(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "meshtrain-worker");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    ::testing::internal::CaptureStderr();
    ::testing::internal::CaptureStdout();
    const auto parsed = ParseArguments(static_cast<int>(argv.size()), argv.data());
    said_ = ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
    if (const int* code = std::get_if<int>(&parsed)) {
      exit_code_ = *code;
      return std::nullopt;
    }
    exit_code_ = -1;
    return std::get<trainer::JobConfig>(parsed);
  }

  int exit_code_ = -1;
  std::string said_;
};

TEST_F(ConfigTest, AManifestIsTrainedHereUnlessToldOtherwise) {
  const auto config = Parse({"-f", "job.yaml"});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->file, "job.yaml");
  EXPECT_EQ(config->output, "runs");
  EXPECT_EQ(config->host, "127.0.0.1");
  EXPECT_EQ(config->port, 0);
  EXPECT_EQ(config->threads, 0);
  EXPECT_EQ(config->memory, 0);
  EXPECT_FALSE(config->isolated);
  EXPECT_NE(config->version, "");
}

TEST_F(ConfigTest, EveryOptionIsTaken) {
  const auto config = Parse({"--file", "job.yaml", "--output", "out", "--metrics-address",
                             "127.0.0.2:8080", "--isolated", "--threads", "3", "--memory", "4096"});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->output, "out");
  EXPECT_EQ(config->host, "127.0.0.2");
  EXPECT_EQ(config->port, 8080);
  EXPECT_TRUE(config->isolated);
  EXPECT_EQ(config->threads, 3);
  EXPECT_EQ(config->memory, 4096);
}

// What the local runner adds: the file is a copy of the user's.
TEST_F(ConfigTest, AManifestMayHaveAnotherNameAndItsCheckpointsAnotherFolder) {
  const auto config = Parse({"--file", "out/manifest.as-run.yaml", "--manifest-name=-job.yaml",
                             "--checkpoint-path", "out/checkpoints"});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->file, "out/manifest.as-run.yaml");
  EXPECT_EQ(trainer::SourceName(*config), "-job.yaml");
  EXPECT_EQ(config->checkpoint_path, "out/checkpoints");
  EXPECT_EQ(trainer::SourceName(*Parse({"--file", "job.yaml"})), "job.yaml");
  for (const char* flag : {"--manifest-name", "--checkpoint-path"}) {
    EXPECT_FALSE(Parse({flag, "x"})) << "without a file";
    EXPECT_EQ(exit_code_, cluster::kExitUsage);
  }
}

TEST_F(ConfigTest, WithoutAManifestItSaysWhatItExpects) {
  EXPECT_FALSE(Parse({}));
  EXPECT_EQ(exit_code_, cluster::kExitUsage);
  EXPECT_THAT(said_, HasSubstr("expected --file MANIFEST, or a program in MESHTRAIN_PROGRAM"));
}

// The operator asks the pod, not its loopback.
TEST_F(ConfigTest, AProgramInTheEnvironmentIsServedAtTheContractsPort) {
  ::setenv(cluster::kEnvProgram.data(), R"({"seed":1})", 1);
  const auto config = Parse({});
  ASSERT_TRUE(config) << said_;
  EXPECT_THAT(config->job.manifest, HasSubstr("seed"));
  EXPECT_THAT(config->host, ::testing::AnyOf("::", "0.0.0.0")) << "as the kernel has it";
  EXPECT_EQ(config->port, cluster::kHttpPort);
  EXPECT_EQ(Parse({"--metrics-address", "none"})->port, std::nullopt);
}

TEST_F(ConfigTest, WrongOptionsAreUsageErrors) {
  for (const char* wrong : {"--bogus", "--threads=-1", "--threads=many", "--memory=-5"}) {
    EXPECT_FALSE(Parse({"-f", "job.yaml", wrong})) << wrong;
    EXPECT_EQ(exit_code_, cluster::kExitUsage) << wrong;
  }
  EXPECT_FALSE(Parse({"-f", "job.yaml", "--metrics-address", "host"}));
  EXPECT_EQ(exit_code_, cluster::kExitUsage);
  EXPECT_THAT(said_, HasSubstr("--metrics-address: expected HOST:PORT or none, got: host"));
}

TEST_F(ConfigTest, WhatOnlyTellsSomethingEndsWell) {
  EXPECT_FALSE(Parse({"--help"}));
  EXPECT_EQ(exit_code_, 0);
  EXPECT_THAT(said_, HasSubstr("--metrics-address"));
  EXPECT_FALSE(Parse({"--version"}));
  EXPECT_EQ(exit_code_, 0);
  EXPECT_THAT(said_, HasSubstr("meshtrain-worker "));
}

TEST(MetricsAddressTest, IsAHostAndAPortOrNone) {
  struct Case {
    std::string text;
    std::optional<std::string> host;  // nothing: refused
    std::optional<int> port;
  };
  for (const Case& c : std::vector<Case>{{"none", "127.0.0.1", std::nullopt},
                                         {":0", "127.0.0.1", 0},
                                         {"10.0.0.1:65535", "10.0.0.1", 65535},
                                         {"[::1]:80", "::1", 80},
                                         {"80", std::nullopt, 0},
                                         {"", std::nullopt, 0},
                                         {"a:", std::nullopt, 0},
                                         {"a:65536", std::nullopt, 0},
                                         {"a:-1", std::nullopt, 0},
                                         {"a:8x", std::nullopt, 0}}) {
    trainer::JobConfig config;
    const Status status = ParseMetricsAddress(c.text, &config);
    EXPECT_EQ(status.ok(), c.host.has_value()) << c.text;
    if (!c.host) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.text;
      continue;
    }
    EXPECT_EQ(config.host, *c.host) << c.text;
    EXPECT_EQ(config.port, c.port) << c.text;
  }
}

}  // namespace
}  // namespace meshtrain::worker
