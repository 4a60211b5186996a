#include "tests/operator/local/play.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "runtime/base/file.h"

namespace meshtrain::local {

std::string ShellTemplate(const std::string& script, const std::string& more_of_container,
                          const std::string& more_of_pod) {
  const std::string text = nlohmann::json(script).dump();
  return R"({"spec":{)" + (more_of_pod.empty() ? "" : more_of_pod + ",") +
         R"("containers":[{"name":"trainer","image":"train:1",)" +
         (more_of_container.empty() ? "" : more_of_container + ",") + R"("command":["sh","-c",)" +
         text + "]}]}}";
}

const api::Condition& Played::condition(api::ConditionType type) const {
  static const api::Condition kNone;
  const auto found = ending.status.conditions.find(type);
  if (found != ending.status.conditions.end()) return found->second;
  ADD_FAILURE() << "no condition " << api::ConditionName(type);
  return kNone;
}

PlayTest::PlayTest() {
  folder_ = (std::filesystem::path(::testing::TempDir()) / "play-XXXXXX").string();
  if (::mkdtemp(folder_.data()) == nullptr) ADD_FAILURE() << "no folder";
}
PlayTest::~PlayTest() { std::filesystem::remove_all(folder_); }

api::TrainingJob PlayTest::WithScript(api::TrainingJob job, const std::string& script) {
  for (auto& [role, replica] : job.spec.replica_specs) {
    replica.pod_template = api::ReadPodTemplate(ShellTemplate(script), "template", nullptr);
  }
  return job;
}

Played PlayTest::Play(const api::TrainingJob& job, RunnerOptions options) {
  const auto open = [&](const char* name) {
    return ::open((folder_ + "/" + name).c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  };
  const bool own_stdout = options.stdout_fd == STDOUT_FILENO;
  if (own_stdout) options.stdout_fd = open("stdout");
  options.stderr_fd = open("stderr");
  if (options.launch.output == "runs") options.launch.output = folder_ + "/out";
  if (options.launch.environment.empty()) {
    options.launch.environment = {{"PATH", "/usr/local/bin:/usr/bin:/bin"},
                                  {"TEST_FOLDER", folder_}};
  }
  const int out = options.stdout_fd;
  const int err = options.stderr_fd;
  Played played;
  {
    StopSignals signals;
    Runner runner(job, std::move(options));
    played.ending = runner.Run(signals);
  }
  ::close(err);
  if (own_stdout) {
    ::close(out);
    played.out = ReadFile(folder_ + "/stdout").value();
  }
  played.err = ReadFile(folder_ + "/stderr").value();
  return played;
}

std::string PlayTest::Output(const std::string& name) const {
  const auto text = ReadFile(folder_ + "/out/" + name);
  return text.ok() ? *text : "";
}

}  // namespace meshtrain::local
