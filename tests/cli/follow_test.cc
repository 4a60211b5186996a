// `logs -f`, and `submit` that waits: streams that end, servers that are away, signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/verbs.h"
#include "runtime/cluster/contract.h"
#include "tests/cli/cluster_fixture.h"
#include "tests/cli/short_buffer.h"

namespace meshtrain::cli {
namespace {

using ::testing::HasSubstr;

// A job with one pod, whose streams are those of `logs` in turn, and which ends after them.
class FollowTest : public ClusterVerbsTest {
 protected:
  const std::string job_ = "GET " + std::string(kJobs) + "/mnist";
  const std::string pod_ = "GET " + std::string(kPods) + "/mnist-worker-0";
  const std::string log_ = pod_ + "/log container=trainer follow=true";

  static std::string Time(int seconds, const char* fraction) {
    return "2030-01-01T00:00:0" + std::to_string(seconds) + fraction + "Z";
  }
  static std::string Stamped(int seconds, const char* fraction, const std::string& line) {
    return Time(seconds, fraction) + " " + line + "\n";
  }
  void SetUp() override {
    const std::string running = JobJson("mnist", RunningStatus()).dump();
    first_answers_[job_] = {running, running};
    Answer(JobJson("mnist", EndedStatus()));
    Answer("GET " + std::string(kPods), ListOf({Pod("worker", 0)}));
    json ended = Pod("worker", 0);
    ended["status"]["phase"] = "Succeeded";
    first_answers_[pod_] = {Pod("worker", 0).dump()};
    Answer(pod_, ended.dump());
  }
};

TEST_F(FollowTest, GoesOnBehindTheLastLineWhereAStreamEnds) {
  const std::string two = Stamped(2, ".250", "two"), again = Stamped(2, ".750", "");
  Answer(log_ + " timestamps=true", Stamped(1, ".5", "one") + two);
  // Of the container that was started in its place, from the second of the last line on.
  Answer(log_ + " sinceTime=" + Time(2, "") + " timestamps=true",
         two + again + Time(3, "") + " no line end");
  Answer(log_ + " sinceTime=" + Time(3, "") + " timestamps=true", Time(3, "") + " no line end");
  EXPECT_EQ(Verb({"logs", "mnist", "-f"}), 0) << err_;
  EXPECT_EQ(out_, "one\ntwo\n\nno line end\n");
}

TEST_F(FollowTest, TheTailIsOfTheFirstReadOfAPod) {
  Answer(log_ + " tailLines=1 timestamps=true", Stamped(1, "", "one"));
  Answer(log_ + " sinceTime=" + Time(1, "") + " timestamps=true", Stamped(2, "", "two"));
  Answer(log_ + " sinceTime=" + Time(2, "") + " timestamps=true", "");
  EXPECT_EQ(Verb({"logs", "mnist", "-f", "--tail", "1"}), 0) << err_;
  EXPECT_EQ(out_, "one\ntwo\n");
  EXPECT_EQ(Verb({"logs", "mnist", "-f", "--previous"}), cluster::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--follow excludes --previous"));
}

TEST_F(FollowTest, APodOfTheSameNameIsAnother) {
  json other = Pod("worker", 0);
  other["metadata"]["uid"] = "other";
  first_answers_[pod_] = {other.dump()};
  first_answers_[log_ + " timestamps=true"] = {Stamped(1, "", "one")};
  Answer(log_ + " timestamps=true", Stamped(2, "", "of another"));
  EXPECT_EQ(Verb({"logs", "mnist", "-f"}), 0) << err_;
  EXPECT_EQ(out_, "one\n");
}

TEST_F(FollowTest, AServerThatIsAwayForAWhileIsAskedAgain) {
  const std::string running = JobJson("mnist", RunningStatus()).dump();
  first_answers_[job_] = {running, ""};
  Answer(log_ + " timestamps=true", Stamped(1, "", "one"));
  EXPECT_EQ(Verb({"logs", "mnist", "-f"}), 0) << err_;
  EXPECT_EQ(out_, "one\n");
  const std::string file = Write("job.yaml", JobText());
  Answer("POST " + std::string(kJobs), JobJson("mnist", json::object()).dump(), 201);
  first_answers_[job_] = {"", running};
  EXPECT_EQ(Verb({"submit", "-f", file, "--wait"}), 0) << err_;
  first_answers_[job_] = {""};
  EXPECT_EQ(Verb({"logs", "mnist", "-f"}), cluster::kExitIo) << "not there from the beginning";
}

TEST_F(FollowTest, EndsWhereNobodyReadsWhatIsPrinted) {
  Answer(JobJson("mnist", RunningStatus()));  // and so on
  Answer(log_ + " timestamps=true", Stamped(1, "", "one") + Stamped(2, "", "two and more"));
  ShortBuffer buffer(6);
  std::ostream out(&buffer);
  std::ostringstream err;
  const char* argv[] = {"meshtrain", "logs", "mnist", "-f", "--kubeconfig", config_.c_str()};
  EXPECT_EQ(RunCommand(6, argv, {.out = out, .err = err}), cluster::kExitIo);
  EXPECT_EQ(buffer.text(), "one\n");
  EXPECT_EQ(err.str(), "meshtrain logs: standard output: expected to write to it, got: an error\n");
}

TEST_F(FollowTest, AStopEndsWithItsSignal) {
  Answer(JobJson("mnist", RunningStatus()));
  Answer(log_ + " timestamps=true", Stamped(1, "", "one"));
  const std::string file = Write("job.yaml", JobText());
  Answer("POST " + std::string(kJobs), JobJson("mnist", json::object()).dump(), 201);
  const std::vector<std::vector<std::string>> verbs = {{"logs", "mnist", "-f"},
                                                       {"submit", "-f", file, "--wait"},
                                                       {"submit", "-f", file, "--follow"}};
  for (const auto& verb : verbs) {
    for (const int signal : {SIGINT, SIGTERM}) {
      ForgetWhatWasAsked();
      const std::jthread sender([this, signal](const std::stop_token& end) {
        while (!end.stop_requested()) {
          {
            const std::lock_guard lock(mutex_);
            if (std::find(asked_.begin(), asked_.end(), job_) != asked_.end()) break;
          }
          std::this_thread::yield();
        }
        ::kill(::getpid(), signal);
      });
      EXPECT_EQ(Verb(verb), 128 + signal) << verb[0] << err_;
      EXPECT_THAT(err_, HasSubstr("it goes on in the cluster; no longer waiting"));
    }
  }
}

}  // namespace
}  // namespace meshtrain::cli
