// What ends a job that is run here, what is refused before it starts, and what is left behind. The
// lifecycle rules: cases_test.cc.
#include "operator/local/runner.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>

#include "operator/api/json.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "tests/operator/local/runner_fixture.h"

namespace meshtrain::local {
namespace {

using api::ConditionType;
using cluster::Role;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing_support::MakeJob;

TEST_F(RunnerTest, TheActiveDeadlineEndsIt) {
  const auto job = WithScript(
      MakeJob("mnist")
          .Chief()
          .Workers(1)
          .With([](api::TrainingJob& j) { j.spec.run_policy.active_deadline_seconds = 3; })
          .Build(),
      "trap 'echo saved; exit 143' TERM; while :; do sleep 0.02; done");
  const Played played = Play(job, Quick());
  EXPECT_EQ(played.ending.exit_code, 70) << "no replica failed";
  EXPECT_EQ(played.condition(ConditionType::kFailed).reason, "DeadlineExceeded");
  EXPECT_EQ(played.out, "saved\n") << "asked to end before it is killed";
}

TEST_F(RunnerTest, AProgramThatIsNotThereFailsForGood) {
  auto job =
      MakeJob("mnist")
          .Chief()
          .Template(Role::kChief,
                    R"({"spec":{"containers":[{"name":"trainer","command":["no-such-program"]}]}})")
          .Build();
  Played played = Play(job, Quick());
  EXPECT_EQ(played.ending.exit_code, 127);
  EXPECT_THAT(played.err, HasSubstr("mnist-chief-0: no-such-program: expected a program in PATH"));
  job.spec.replica_specs.at(Role::kChief).pod_template = api::ReadPodTemplate(
      ShellTemplate("exit 0", R"("workingDir":"/no/such/folder")"), "", nullptr);
  played = Play(job, Quick());
  EXPECT_EQ(played.ending.exit_code, 127);
  EXPECT_THAT(played.err, HasSubstr("/no/such/folder"));
}

TEST_F(RunnerTest, AnImageAloneCannotRunHere) {
  const Played played = Play(MakeJob("mnist").Chief().Workers(1).Build(), Quick());
  EXPECT_EQ(played.ending.exit_code, 78);
  for (const char* role : {"chief", "worker"}) {
    EXPECT_THAT(played.err,
                HasSubstr("spec.replicaSpecs." + std::string(role) +
                          ".template.spec.containers[trainer].command: expected a command"));
  }
}

TEST_F(RunnerTest, WhatAPodHasAndAProcessHasNotIsSaid) {
  const auto job =
      MakeJob("mnist")
          .Chief()
          .Template(
              Role::kChief,
              ShellTemplate("exit 0", R"("volumeMounts":[{"name":"data","mountPath":"/data"}])",
                            R"("initContainers":[{"name":"fetch","image":"f"}])"))
          .Build();
  const Played played = Play(job, Quick());
  EXPECT_EQ(played.ending.exit_code, 0);
  EXPECT_THAT(played.err,
              HasSubstr("spec.replicaSpecs.chief.template: a local process goes without "
                        "spec.initContainers, volume data at /data\n"));
}

TEST_F(RunnerTest, ASuspendedJobRunsNothingAndSaysSo) {
  const Played played = Play(
      WithScript(MakeJob("mnist").Chief().Suspended().Build(), "touch $TEST_FOLDER/ran"), Quick());
  EXPECT_EQ(played.ending.exit_code, 78);
  EXPECT_TRUE(played.Is(ConditionType::kSuspended));
  EXPECT_THAT(played.err, HasSubstr("spec.runPolicy.suspend is true: nothing was run\n"));
  EXPECT_EQ(File("ran"), "(none)");
}

TEST_F(RunnerTest, AnInvalidJobIsRefused) {
  auto job = WithScript(MakeJob("mnist").Chief().Build(), "exit 0");
  job.spec.replica_specs.at(Role::kChief).replicas = 2;
  const Played played = Play(job, Quick());
  EXPECT_EQ(played.ending.exit_code, 78);
  EXPECT_THAT(played.err, HasSubstr("spec.replicaSpecs.chief.replicas: must be at most 1, got: 2"));
}

TEST_F(RunnerTest, WhatIsAClustersMeansNothingHere) {
  const auto job = WithScript(MakeJob("mnist")
                                  .Chief()
                                  .With([](api::TrainingJob& j) {
                                    j.spec.run_policy.managed_by = "kueue.x-k8s.io/multikueue";
                                    j.spec.run_policy.ttl_seconds_after_finished = 0;
                                    j.spec.run_policy.scheduling_policy =
                                        api::SchedulingPolicy{.queue = "big"};
                                  })
                                  .Build(),
                              "exit 0");
  EXPECT_EQ(Play(job, Quick()).ending.exit_code, 0);
}

TEST_F(RunnerTest, AnOutputFolderThatCannotBe) {
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/file", "in the way").ok());
  RunnerOptions options = Quick();
  options.launch.output = folder_ + "/file/out";
  const Played played = Play(WithScript(MakeJob("mnist").Chief().Build(), "exit 0"), options);
  EXPECT_EQ(played.ending.exit_code, 73);
  EXPECT_THAT(played.err, HasSubstr("file/out"));
}

TEST_F(RunnerTest, AfterASuccessOthersMayComeToTheirEnd) {
  const std::string script =
      "[ $MESHTRAIN_ROLE = chief ] && exit 0; trap 'echo asked; exit 143' TERM; "
      "[ $MESHTRAIN_ROLE = ps ] && { touch $TEST_FOLDER/ps; while :; do sleep 0.02; done; }; "
      "sleep 0.3; echo 'at its end'";
  // The chief must not be done before the ps has set its trap.
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Ps(1).Build(),
                      "[ $MESHTRAIN_ROLE = chief ] && { " + Await("ps") + "}; " + script),
           Quick());
  EXPECT_EQ(played.ending.exit_code, 0);
  EXPECT_THAT(Log("worker-0"), HasSubstr("at its end\n"));
  EXPECT_THAT(Log("worker-0"), Not(HasSubstr("asked")));
  EXPECT_THAT(Log("ps-0"), HasSubstr("asked\n")) << "a ps would never end";
}

TEST_F(RunnerTest, NothingIsLeftBehind) {
  // $$ is Kubernetes' way to write $.
  const std::string script =
      "setsid sh -c 'echo $$$$ >>$TEST_FOLDER/pids; exec sleep 1000' & "
      "until [ $(cat $TEST_FOLDER/pids | wc -l) = 2 ]; do sleep 0.02; done; exit 0";
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/pids", "").ok());
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), Quick());
  EXPECT_EQ(played.ending.exit_code, 0);
  int looked = 0;
  for (const std::string& line : Split(File("pids"), '\n')) {
    if (const auto pid = ParseInt(line)) {
      ++looked;
      EXPECT_NE(::kill(static_cast<pid_t>(*pid), 0), 0) << *pid;
    }
  }
  EXPECT_EQ(looked, 2);
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_THAT(entry.path().filename().string(), Not(StartsWith("meshtrain-")))
        << "the private folder";
  }
}

}  // namespace
}  // namespace meshtrain::local
