// The command line as a function: arguments to an exit code and what is written. What needs the
// processes of a run is in tests/e2e/cli.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"
#include "tests/cli/manifests.h"
#include "tests/cli/short_buffer.h"

namespace meshtrain::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class CommandTest : public ManifestTest {
 protected:
  int Command(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "meshtrain");
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out, err;
    const int code =
        RunCommand(static_cast<int>(argv.size()), argv.data(), {.out = out, .err = err});
    out_ = out.str();
    err_ = err.str();
    return code;
  }

  std::string out_, err_;
};

TEST_F(CommandTest, VersionGoesToTheOutput) {
  EXPECT_EQ(Command({"version"}), 0);
  EXPECT_EQ(out_, "meshtrain " MT_VERSION "\n");
  EXPECT_EQ(Command({"--version"}), 0);
  EXPECT_EQ(out_, MT_VERSION "\n");
  EXPECT_THAT(err_, IsEmpty());
}

TEST_F(CommandTest, WhatIsNotPrintedIsAnError) {
  const std::vector<std::vector<const char*>> commands = {{"meshtrain", "version"},
                                                          {"meshtrain", "--version"},
                                                          {"meshtrain", "plan", "--help"},
                                                          {"meshtrain", "completion", "bash"}};
  for (const auto& argv : commands) {
    ShortBuffer buffer(4);
    std::ostream out(&buffer);
    std::ostringstream err;
    EXPECT_EQ(RunCommand(static_cast<int>(argv.size()), argv.data(), {.out = out, .err = err}),
              cluster::kExitIo)
        << argv[1];
    EXPECT_EQ(err.str(), "meshtrain: standard output: expected to write to it, got: an error\n");
  }
}

TEST_F(CommandTest, AManifestNeedsNoFlag) {
  for (const char* verb : {"run", "plan", "validate", "convert", "submit"}) {
    EXPECT_EQ(Command({verb, "nowhere.yaml"}), cluster::kExitNoInput) << verb;
    EXPECT_THAT(err_, HasSubstr("nowhere.yaml: cannot open")) << verb;
  }
}

TEST_F(CommandTest, GenerateTakesWhatAManifestTakes) {
  EXPECT_EQ(Command({"generate", "x.yaml", "--from", "x", "--prompt", ""}), cluster::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--prompt: expected at least one character, got: none"));
  EXPECT_EQ(Command({"generate", "x.yaml", "--from", "x", "--temperature", "1e7"}),
            cluster::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--temperature: expected a number from 0 to 1e6, got: 1e7"));
}

TEST_F(CommandTest, HelpNamesEveryVerbAndEachVerbItsFlags) {
  EXPECT_EQ(Command({"--help"}), 0);
  for (const char* verb : {"run", "evaluate", "predict", "generate", "plan", "validate", "convert",
                           "submit", "list", "status", "logs", "events", "suspend", "resume",
                           "scale", "report", "completion", "version"}) {
    EXPECT_THAT(out_, ContainsRegex(std::string("\n +") + verb + " "));
    EXPECT_EQ(Command({verb, "--help"}), 0) << verb;
    EXPECT_THAT(err_, IsEmpty());
    Command({"--help"});
  }
  Command({"run", "--help"});
  for (const char* flag : {"--file", "--output", "--metrics-address", "--isolated", "--threads"}) {
    EXPECT_THAT(out_, HasSubstr(flag));
  }
}

struct Usage {
  std::string name;
  std::vector<std::string> arguments;
  std::string says;
};

class UsageTest : public CommandTest, public ::testing::WithParamInterface<Usage> {};

TEST_P(UsageTest, IsRefusedOnStderrWithTheExitCodeOfUsage) {
  EXPECT_EQ(Command(GetParam().arguments), cluster::kExitUsage);
  EXPECT_THAT(err_, HasSubstr(GetParam().says));
  EXPECT_THAT(out_, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    CommandLines, UsageTest,
    ::testing::Values(
        Usage{"NoVerb", {}, "A subcommand is required"},
        Usage{
            "UnknownVerb",
            {"train"},
            "expected one of the verbs run, evaluate, predict, generate, plan, validate, convert, "
            "submit, list, status, logs, events, suspend, resume, scale, report, completion, "
            "version"},
        Usage{"MisspeltVerb", {"plna"}, "got: plna, did you mean `plan`?"},
        Usage{"TwoVerbs", {"version", "plan"}, "plan"},
        Usage{"NoFile", {"validate"}, "--file is required"},
        Usage{"FileWithoutAValue", {"plan", "-f"}, "--file: 1 required"},
        Usage{"UnknownFlag", {"plan", "-f", "x", "--devices"}, "--devices"},
        Usage{"FlagOfAnotherVerb", {"plan", "-f", "x", "--threads", "2"}, "--threads"},
        Usage{"TooManyWords", {"validate", "-f", "x", "y"}, "y"},
        Usage{
            "NoThreads", {"run", "-f", "x", "--threads", "-1"}, "--threads: Value -1 not in range"},
        Usage{"NoTemperature",
              {"generate", "-f", "x", "--from", "y", "--temperature", "-1"},
              "--temperature: expected a number from 0 to 1e6, got: -1"},
        Usage{"NoSeed",
              {"generate", "-f", "x", "--from", "y", "--seed", "a"},
              "--seed: expected a whole number, got: a"},
        Usage{"NoPort",
              {"run", "-f", "x", "--metrics-address", "localhost"},
              "meshtrain run: --metrics-address: expected HOST:PORT or none, got: localhost"},
        Usage{"PortTooLarge", {"run", "-f", "x", "--metrics-address", ":65536"}, "got: :65536"}),
    [](const auto& info) { return info.param.name; });

TEST_F(CommandTest, AMissingFileIsNamedByEveryVerb) {
  const std::string file = folder_.path() + "/none.yaml";
  for (const char* verb : {"validate", "plan", "run"}) {
    EXPECT_EQ(Command({verb, "-f", file}), cluster::kExitNoInput) << verb;
    EXPECT_THAT(err_, StartsWith("meshtrain " + std::string(verb) + ": " + file + ": "));
    EXPECT_THAT(out_, IsEmpty());
  }
}

// What is asked of a trained model before the worker is started.
TEST_F(CommandTest, EvaluatePredictAndGenerateLookAtTheManifestAndTheRunFirst) {
  const std::string from = folder_.path();
  const std::vector<std::vector<std::string>> verbs = {
      {"evaluate"},
      {"predict", "--input", "x.npy", "--output", "y.npy"},
      {"generate", "--prompt", "The"}};
  for (std::vector<std::string> verb : verbs) {
    verb.insert(verb.end(), {"--from", from, "none.yaml"});
    EXPECT_EQ(Command(verb), cluster::kExitNoInput);
    EXPECT_THAT(err_, StartsWith("meshtrain " + verb[0] + ": none.yaml: "));
    verb.back() = Write("bad.yaml", Replaced(JobText(), "units: 12", "unit: 12"));
    EXPECT_EQ(Command(verb), cluster::kExitBadConfig);
    EXPECT_THAT(err_, HasSubstr("unknown option `unit`"));
    // A run that has not succeeded.
    verb.back() = Write("job.yaml", JobText());
    Write("status.json", R"({"conditions": [{"type": "Running", "status": "True"}]})");
    EXPECT_EQ(Command(verb), cluster::kExitBadConfig);
    EXPECT_THAT(err_, HasSubstr(from + ": expected the folder of a run that has succeeded"));
    EXPECT_THAT(out_, IsEmpty());
    verb.pop_back();
    EXPECT_EQ(Command(verb), cluster::kExitUsage);
    EXPECT_THAT(err_, HasSubstr("--file is required"));
  }
}

TEST_F(CommandTest, AFolderIsNoManifest) {
  EXPECT_NE(Command({"validate", "-f", folder_.path()}), 0);
  EXPECT_THAT(err_, HasSubstr(folder_.path()));
}

TEST_F(CommandTest, AProgramAloneAndAJobAreValid) {
  for (const std::string& file :
       {Write("program.yaml", ProgramText()), Write("job.yaml", JobText())}) {
    EXPECT_EQ(Command({"validate", "-f", file}), 0) << err_;
    EXPECT_EQ(out_, file + ": valid\n");
    EXPECT_THAT(err_, IsEmpty());
  }
}

TEST_F(CommandTest, EveryVerbTellsAMistakeWithItsPlaceAndStartsNothing) {
  const std::string file = Write("job.yaml", Replaced(JobText(), "units: 12", "unit: 12"));
  for (const char* verb : {"validate", "plan", "run"}) {
    EXPECT_EQ(Command({verb, "-f", file}), cluster::kExitBadConfig) << verb;
    EXPECT_THAT(err_, HasSubstr(file + ":16:"));
    EXPECT_THAT(err_, HasSubstr("unknown option `unit`"));
    EXPECT_THAT(out_, IsEmpty());
  }
}

TEST_F(CommandTest, TwoJobsInOneFileAreRefusedByEveryVerb) {
  const std::string file = Write("two.yaml", JobText() + "---\n" + JobText());
  for (const char* verb : {"validate", "plan", "run"}) {
    EXPECT_EQ(Command({verb, "-f", file}), cluster::kExitBadConfig) << verb;
    EXPECT_THAT(err_, HasSubstr(file + ":22:1: expected one TrainingJob, got: another")) << verb;
  }
}

// Devices behind walls hold each its own, as a run's do.
TEST_F(CommandTest, PlanCountsTheMemoryOfEachDeviceThatHasItsOwn) {
  const auto needed = [&](const std::string& text) {
    EXPECT_EQ(Command({"plan", "-f", Write("program.yaml", text)}), 0) << err_;
    const size_t at = out_.find("(", out_.find("\non one host"));
    return ParseInt(out_.substr(at + 1, out_.find(" bytes", at) - at - 1)).value_or(-1);
  };
  const int64_t shared = needed(ProgramText());
  const int64_t one = needed(Replaced(ProgramText(), "batch: 2", "batch: 1"));
  const int64_t apart = needed(
      Replaced(ProgramText(), "mesh: {batch: 2}", "mesh: {batch: 2}\ndevices: {kind: discrete}"));
  EXPECT_GT(one, 0);
  EXPECT_EQ(shared, one);
  EXPECT_GT(apart, shared);
}

TEST_F(CommandTest, PlanSaysWhatAStepDoesAndWhatItNeeds) {
  EXPECT_EQ(Command({"plan", "-f", Write("program.yaml", ProgramText())}), 0) << err_;
  for (const char* word : {"batch=2", "hidden.kernel", "all_reduce", "hash"}) {
    EXPECT_THAT(out_, HasSubstr(word));
  }
  EXPECT_THAT(out_, ContainsRegex("\non one host  at most [0-9.]+ [kMG]?B \\([0-9]+ bytes\\) for 2 "
                                  "devices, kernels' scratch aside; available: "));
  EXPECT_THAT(err_, IsEmpty());
  const std::string of_two = out_;
  EXPECT_EQ(
      Command({"plan", "-f", Write("one.yaml", Replaced(ProgramText(), "batch: 2", "batch: 1"))}),
      0);
  EXPECT_THAT(out_, HasSubstr(" for 1 device, "));
  EXPECT_THAT(out_, Not(HasSubstr("all_reduce")));
}

TEST_F(CommandTest, PlanOfDataThatIsNotHereNamesTheFile) {
  const std::string file = Write("away.yaml", Replaced(ProgramText(), "digits5120-images", "away"));
  EXPECT_EQ(Command({"plan", "-f", file}), cluster::kExitNoInput);
  EXPECT_THAT(err_, HasSubstr("away-idx3-ubyte.gz"));
  // Nothing is wrong with the manifest as far as one can see from here.
  EXPECT_EQ(Command({"validate", "-f", file}), 0) << err_;
}

TEST_F(CommandTest, ValidateTracesTheProgramWithTheDataAtHand) {
  const std::string file =
      Write("job.yaml", Replaced(JobText(), "- flatten", "- dense: {name: flat, units: 3}"));
  EXPECT_EQ(Command({"validate", "-f", file}), cluster::kExitBadConfig);
  EXPECT_THAT(err_, ContainsRegex("job\\.yaml:[0-9]+:[0-9]+: "));
}

}  // namespace
}  // namespace meshtrain::cli
