// Runs jobs with the settings that suit tests: short waits, a folder of the test's own.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "operator/local/runner.h"
#include "runtime/base/file.h"
#include "tests/operator/local/play.h"

namespace meshtrain::local {

class RunnerTest : public PlayTest {
 protected:
  RunnerTest() { ::setenv("TMPDIR", folder_.c_str(), 1); }
  ~RunnerTest() override { ::unsetenv("TMPDIR"); }

  std::string File(const std::string& name) const {
    const auto text = ReadFile(folder_ + "/" + name);
    return text.ok() ? *text : "(none)";
  }
  RunnerOptions Quick() const {
    RunnerOptions options{.crash_loop = {.first = std::chrono::milliseconds(50)},
                          .progress_period = std::chrono::milliseconds(50),
                          .linger = std::chrono::seconds(20)};
    options.launch.environment = {{"PATH", "/usr/local/bin:/usr/bin:/bin"},
                                  {"TEST_FOLDER", folder_},
                                  {"RUNNER", std::to_string(::getpid())}};
    return options;
  }
  // Waits in a shell until that file is there.
  static std::string Await(const std::string& file) {
    return "until [ -e $TEST_FOLDER/" + file + " ]; do sleep 0.02; done; ";
  }
};

}  // namespace meshtrain::local
