// Who does what in a job, and what is refused before anything is trained.
#include "worker/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/cluster/exit_code.h"
#include "tests/runtime/membership/membership_testing.h"
#include "tests/worker/small_job.h"

namespace meshtrain::worker {
namespace {

using cluster::Role;
using cluster::TaskId;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ServiceTest : public SmallJobTest {
 protected:
  ~ServiceTest() override { ::unsetenv(cluster::kEnvStopGrace.data()); }

  Status Run(const trainer::JobConfig& config, bool stopped = false) {
    std::stop_source stop;
    if (stopped) stop.request_stop();
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const Status end = Serve(config, stop.get_token());
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return end;
  }
  // The process `task` of a job of these roles, one each but two workers.
  trainer::JobConfig As(TaskId task, std::initializer_list<Role> roles, const std::string& text) {
    trainer::JobConfig config = Config(text);
    cluster::TfConfig tf_config{.cluster = {}, .task = task};
    for (const Role role : roles) {
      for (int i = 0; i < (role == Role::kWorker ? 2 : 1); ++i) {
        tf_config.cluster.hosts[role][i] =
            TaskId{role, i} == task ? port_.address() : "elsewhere:2222";
      }
    }
    config.job.tf_config = tf_config;
    return config;
  }
  // Refused for a reason of the manifest's or the environment's.
  void ExpectRefused(const trainer::JobConfig& config, const std::string& says) {
    const Status end = Run(config);
    EXPECT_EQ(end.code(), StatusCode::kInvalidArgument) << end.ToString();
    EXPECT_EQ(end.origin(), Origin::kManifest);
    EXPECT_THAT(end.message(), HasSubstr(says));
    EXPECT_EQ(err_, "meshtrain-worker: " + end.message() + "\n");
    EXPECT_THAT(out_, IsEmpty());
  }

  const membership::ReservedPort port_;
  std::string out_, err_;
};

TEST_F(ServiceTest, WhatCannotBeIsRefusedBeforeAnythingIsTrained) {
  ExpectRefused(Config(Text()),
                "/job.yaml: spec.strategy: ParameterServer needs chief, worker and ps processes: "
                "expected TF_CONFIG to say who they are, got: none");
  ExpectRefused(As({Role::kChief, 0}, {Role::kChief, Role::kWorker}, Text()),
                "TF_CONFIG: cluster.ps: ParameterServer needs at least one, got: none");
  ExpectRefused(As({Role::kPs, 1}, {Role::kChief, Role::kWorker, Role::kPs}, Text()),
                "TF_CONFIG: cluster: expected HOST:PORT for ps-1, got: none");
  ExpectRefused(
      As({Role::kEvaluator, 0}, {Role::kEvaluator},
         Replaced(Text(), "      test:", "      # test:")),
      "/job.yaml: program.data.test: the evaluator expects data to evaluate on, got: none");
  ExpectRefused(Config(Replaced(Text(), "flatten", "flaten")), "did you mean `flatten`?");
}

TEST_F(ServiceTest, AManifestThatIsNotThereIsTheManifestsTrouble) {
  trainer::JobConfig config = Config(Text());
  config.file = folder_.path() + "/none.yaml";
  const Status end = Run(config);
  EXPECT_EQ(end.code(), StatusCode::kNotFound);
  EXPECT_EQ(end.origin(), Origin::kManifest);
  EXPECT_THAT(err_, HasSubstr("none.yaml"));
}

TEST_F(ServiceTest, ATimeToStopThatIsNoTimeIsRefusedByThoseWhoServe) {
  ::setenv(cluster::kEnvStopGrace.data(), "soon", 1);
  for (const Role role : {Role::kPs, Role::kWorker}) {
    ExpectRefused(As({role, 0}, {Role::kChief, Role::kWorker, Role::kPs}, Text()),
                  "MESHTRAIN_STOP_GRACE_SECONDS: expected seconds from 0, got: soon");
  }
}

// They were asked to stop before they began, and no chief has come: each says what it is and goes.
TEST_F(ServiceTest, ServersAndWorkersServeAndNeedNoData) {
  struct Case {
    TaskId task;
    std::string says;
  };
  const std::string port = std::to_string(port_.port());
  for (const Case& c :
       {Case{{Role::kPs, 0}, "parameter server 0 at port " + port + "; log in "},
        Case{{Role::kWorker, 0}, "worker 0 at port " + port + ", for the chief's"},
        Case{{Role::kWorker, 1}, "worker 1 at port " + port + ", for the chief's"}}) {
    const Status end =
        Run(As(c.task, {Role::kChief, Role::kWorker, Role::kPs}, Text(/*away=*/true)), true);
    EXPECT_EQ(end, cluster::Stopped()) << end.ToString();
    EXPECT_THAT(out_, HasSubstr(c.says));
    EXPECT_THAT(err_, Not(HasSubstr("meshtrain-worker: "))) << "a stop is no error";
  }
}

// Who leads opens the data first.
TEST_F(ServiceTest, TheChiefLeadsAndWithoutOneTheFirstWorker) {
  const std::string text = Text(/*away=*/true);
  for (const trainer::JobConfig& config :
       {As({Role::kChief, 0}, {Role::kChief, Role::kWorker, Role::kPs}, text),
        As({Role::kWorker, 0}, {Role::kWorker, Role::kPs}, text)}) {
    const Status end = Run(config);
    EXPECT_EQ(end.code(), StatusCode::kNotFound) << end.ToString();
    EXPECT_EQ(end.origin(), Origin::kInput);
    EXPECT_THAT(err_, HasSubstr("/away-images-idx3-ubyte.gz"));
  }
  EXPECT_EQ(Run(As({Role::kWorker, 1}, {Role::kWorker, Role::kPs}, text), /*stopped=*/true),
            cluster::Stopped());
  EXPECT_THAT(out_, HasSubstr("worker 1 at port "));
}

}  // namespace
}  // namespace meshtrain::worker
