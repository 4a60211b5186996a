// What a run says: the output of its replicas, their last messages, its own warnings.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "runtime/base/file.h"
#include "tests/operator/local/runner_fixture.h"

namespace meshtrain::local {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing_support::MakeJob;

TEST_F(RunnerTest, OutputGoesWhereItBelongs) {
  const std::string script =
      "if [ $MESHTRAIN_ROLE = chief ]; then printf 'a\\rb'; echo; echo 'chief warns' >&2; " +
      Await("said") +
      "else echo 'worker says'; echo 'worker warns' >&2; printf 'no end' >&2; touch "
      "$TEST_FOLDER/said; fi";
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), Quick());
  EXPECT_EQ(played.ending.exit_code, 0);
  EXPECT_EQ(played.out, "a\rb\n") << "the leader's, unchanged";
  EXPECT_THAT(played.err, HasSubstr("chief warns\n"));
  EXPECT_THAT(played.err, HasSubstr("worker-0: worker warns\n"));
  EXPECT_THAT(played.err, HasSubstr("worker-0: no end\n"));
  EXPECT_THAT(Log("worker-0"), HasSubstr("worker says\n"));
  EXPECT_THAT(Log("worker-0"), HasSubstr("worker warns\nno end\n"));
  EXPECT_THAT(Log("worker-0"), StartsWith("--- mnist-worker-0, attempt 0, restart 0, "));
  EXPECT_THAT(Log("chief-0"), HasSubstr("chief warns\n"));
  EXPECT_THAT(played.err, HasSubstr("mnist: JobCreated: the job is created\n"));
  EXPECT_THAT(played.err, HasSubstr("mnist: JobSucceeded: mnist-chief-0 has succeeded\n"));
  const auto status = nlohmann::json::parse(Output("status.json"));
  EXPECT_EQ(status["phase"], "Succeeded");
  EXPECT_EQ(status, nlohmann::json::parse(api::StatusToJson(played.ending.status)));
}

TEST_F(RunnerTest, NothingOfMuchOutputIsLost) {
  const std::string script = "[ $MESHTRAIN_ROLE = worker ] || seq 1 100000; seq 1 50000 >&2";
  RunnerOptions options = Quick();
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), options);
  EXPECT_EQ(played.ending.exit_code, 0);
  EXPECT_EQ(std::count(played.out.begin(), played.out.end(), '\n'), 100000);
  EXPECT_THAT(played.out, ::testing::EndsWith("\n100000\n"));
  const std::string log = Log("worker-0");
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 50001);
  EXPECT_THAT(played.err, HasSubstr("\nworker-0: 50000\n"));
}

TEST_F(RunnerTest, AReaderThatDoesNotReadKeepsNobodyFromStopping) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  RunnerOptions options = Quick();
  options.stdout_fd = ends[1];
  const std::string script =
      "if [ $MESHTRAIN_ROLE = chief ]; then yes; fi; yes | head -c 1000000 >&2; "
      "kill -TERM $RUNNER; exec sleep 1000";
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), options);
  EXPECT_EQ(played.ending.exit_code, 143);
  EXPECT_THAT(Log("worker-0"), HasSubstr("y\ny\n"));
  EXPECT_LT(Log("chief-0").size(), 1'000'000u) << "it is made to wait";
  for (const int end : ends) ::close(end);
}

TEST_F(RunnerTest, ALastMessageIsProgressOrTheReason) {
  const std::string script = "if [ $MESHTRAIN_ROLE = chief ]; then " + Await("failed") +
                             "printf '{\"step\":7,\"totalSteps\":7,\"loss\":0.5}' "
                             ">$MESHTRAIN_TERMINATION_LOG; exit 0; fi; "
                             "if [ $MESHTRAIN_INDEX = 0 ]; then echo first; echo 'out of cheese' "
                             ">&2; exit 1; fi; "
                             "echo noise; printf 'told so' >$MESHTRAIN_TERMINATION_LOG; exit 1";
  RunnerOptions options = Quick();
  options.on_settled = [&](const api::TrainingJob&, const reconcile::Observed& seen) {
    const auto failed = [](const auto& pod) { return pod.phase == reconcile::PodPhase::kFailed; };
    if (std::count_if(seen.pods.begin(), seen.pods.end(), failed) < 2) return;
    EXPECT_TRUE(WriteFileAtomically(folder_ + "/failed", "").ok());  // now the chief may end
  };
  const Played played = Play(WithScript(MakeJob("mnist")
                                            .Chief()
                                            .Workers(2)
                                            .With([](api::TrainingJob& job) {
                                              job.spec.failure_rules = {{.action = "Ignore"}};
                                            })
                                            .Build(),
                                        script),
                             options);
  EXPECT_EQ(played.ending.exit_code, 0) << played.err;
  ASSERT_TRUE(played.ending.status.progress);
  EXPECT_EQ(played.ending.status.progress->step, 7);
  EXPECT_EQ(played.ending.status.progress->loss, 0.5);
  std::map<std::string, std::string> worst;
  for (const auto& trouble : played.ending.status.worst) worst[trouble.pod] = trouble.last_line;
  EXPECT_EQ(worst["mnist-worker-0"], "out of cheese") << "without a message, what it said last";
  EXPECT_EQ(worst["mnist-worker-1"], "told so");
}

// What a replica said on stderr the user has seen; what it left as its last message, not.
TEST_F(RunnerTest, AFailureNamesTheReplicaOnceAndLeavesWithItsCode) {
  const std::string script =
      "[ $MESHTRAIN_ROLE = chief ] && exec sleep 1000; echo 'no such bucket' >&2; exit 66";
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), Quick());
  EXPECT_EQ(played.ending.exit_code, 66);
  EXPECT_THAT(
      played.err,
      HasSubstr("warning: JobFailed: mnist-worker-0 failed with exit code 66 (Error), which is not "
                "retried\n"));
  EXPECT_THAT(played.err, HasSubstr("mnist: mnist-worker-0: exit code 66 (Error)\n"));
  EXPECT_THAT(played.err, HasSubstr("mnist: Failed: ready "));
  const size_t told = played.err.find("worker-0: no such bucket\n");
  ASSERT_NE(told, std::string::npos) << played.err;
  EXPECT_EQ(played.err.find("no such bucket", told + 20), std::string::npos) << played.err;
  EXPECT_THAT(played.ending.status.conditions.at(api::ConditionType::kFailed).message,
              EndsWith("not retried: no such bucket"));

  const std::string message =
      "[ $MESHTRAIN_ROLE = chief ] && exec sleep 1000; "
      "printf 'no such bucket' >$MESHTRAIN_TERMINATION_LOG; exit 66";
  const Played left =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), message), Quick());
  EXPECT_THAT(left.err, HasSubstr("not retried: no such bucket\n"));
  EXPECT_THAT(left.err, HasSubstr("mnist: mnist-worker-0: exit code 66 (Error): no such bucket\n"));
}

}  // namespace
}  // namespace meshtrain::local
