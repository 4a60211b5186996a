// Jobs of small shell commands, run for real by a Runner, for its tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "operator/local/runner.h"
#include "tests/support/job_builder.h"

namespace meshtrain::local {

// The template of a container that runs `script` with sh.
std::string ShellTemplate(const std::string& script, const std::string& more_of_container = "",
                          const std::string& more_of_pod = "");

struct Played {
  JobEnd ending;
  std::string out;  // what the run wrote to its stdout and stderr
  std::string err;
  const api::Condition& condition(
      api::ConditionType type) const;  // fails the test where there is none
  bool Is(api::ConditionType type) const { return api::IsTrue(ending.status, type); }
};

class PlayTest : public ::testing::Test {
 protected:
  PlayTest();
  ~PlayTest() override;

  // Every replica of the job gets a container that runs `script`.
  static api::TrainingJob WithScript(api::TrainingJob job, const std::string& script);
  Played Play(const api::TrainingJob& job, RunnerOptions options = {});
  // Of a file in the output folder; "" where there is none.
  std::string Output(const std::string& name) const;
  std::string Log(const std::string& task) const { return Output("logs/" + task + ".log"); }

  std::string folder_;  // for the test's own files; the output folder is folder_/out
};

}  // namespace meshtrain::local
