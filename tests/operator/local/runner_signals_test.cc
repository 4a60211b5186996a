// What signals do to a run: its processes save and end, or are killed.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include "tests/operator/local/runner_fixture.h"

namespace meshtrain::local {
namespace {

using cluster::Role;
using ::testing::HasSubstr;
using testing_support::MakeJob;

struct SignalCase {
  std::string name;
  std::string script;  // $SIGNAL is sent to the run; the job ends no other way
  int want = 0;
  std::string said;
};
void PrintTo(const SignalCase& c, std::ostream* out) { *out << c.name; }
class SignalTest : public RunnerTest, public ::testing::WithParamInterface<SignalCase> {};

TEST_P(SignalTest, StopsEverything) {
  const std::string script = "if [ $MESHTRAIN_ROLE = chief ]; then " + Await("ready") +
                             GetParam().script +
                             "; else trap 'echo saved; exit 143' TERM; touch $TEST_FOLDER/ready; "
                             "while :; do sleep 0.02; done; fi";
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), Quick());
  EXPECT_EQ(played.ending.exit_code, GetParam().want) << played.err;
  EXPECT_THAT(played.out + played.err, HasSubstr(GetParam().said));
  if (GetParam().name != "TheSecondKills") {
    EXPECT_THAT(Log("worker-0"), HasSubstr("saved\n"));
  }
  EXPECT_THAT(played.err, HasSubstr("stopping; its processes have 30 s to save"));
}

const SignalCase kSignals[] = {
    {"Term",
     "trap 'echo chief saved; exit 143' TERM; kill -TERM $RUNNER; while :; do sleep 0.02; done",
     143, "chief saved\n"},
    {"SaysWhereItIs",
     R"(trap 'printf %s "{\"step\":7,\"checkpoint\":{\"step\":6,\"path\":\"/c/6\"}}" > $MESHTRAIN_TERMINATION_LOG; )"
     "exit 143' TERM; kill -TERM $RUNNER; while :; do sleep 0.02; done",
     143, "mnist: stopped at step 7; checkpoint of step 6 in /c/6\n"},
    {"Int",
     "trap 'echo chief saved; exit 143' TERM; kill -INT $RUNNER; while :; do sleep 0.02; done", 130,
     "chief saved\n"},
    {"Hangup",
     "trap 'echo chief saved; exit 143' TERM; kill -HUP $RUNNER; while :; do sleep 0.02; done", 129,
     "chief saved\n"},
    {"HangupsOfOneTerminal",
     "trap 'kill -HUP $RUNNER; sleep 0.2; echo chief saved; exit 143' TERM; kill -HUP $RUNNER; "
     "while :; do sleep 0.02; done",
     129, "chief saved\n"},
    {"ZeroIsNoSuccess", "trap 'exit 0' TERM; kill -TERM $RUNNER; while :; do sleep 0.02; done", 143,
     ""},
    {"SavingFailed", "trap 'exit 73' TERM; kill -TERM $RUNNER; while :; do sleep 0.02; done", 73,
     "mnist: stopped; its leader left with exit code 73\n"},
    {"TheSecondKills",
     "trap '[ $again ] || { again=1; echo asked; kill -TERM $RUNNER; }' TERM; kill -TERM $RUNNER; "
     "while :; do sleep "
     "0.02; done",
     143, "its leader was killed before it had saved"},
    {"TheProgramOfItsOwnDoesNotCatchIt", "kill -TERM $RUNNER; exec sleep 1000", 143, ""},
};
INSTANTIATE_TEST_SUITE_P(Signals, SignalTest, ::testing::ValuesIn(kSignals),
                         [](const auto& i) { return i.param.name; });

TEST_F(RunnerTest, WhoDoesNotEndInTimeIsKilled) {
  const auto job =
      MakeJob("mnist")
          .Chief()
          .Template(Role::kChief,
                    ShellTemplate("trap '' TERM; kill -TERM $RUNNER; while :; do sleep 0.02; done",
                                  "", R"("terminationGracePeriodSeconds":1)"))
          .Build();
  const Played played = Play(job, Quick());
  EXPECT_EQ(played.ending.exit_code, 143);
  EXPECT_THAT(played.err, HasSubstr("its processes have 1 s to save"));
  EXPECT_THAT(played.err, HasSubstr("killed before it had saved"));
}

TEST_F(RunnerTest, ASignalAfterTheEndHurriesIt) {
  // The worker would be waited for, and does not end when asked to.
  const std::string script =
      "if [ $MESHTRAIN_ROLE = chief ]; then " + Await("ready") +
      "exit 0; fi; trap 'kill -TERM $RUNNER' TERM; touch $TEST_FOLDER/ready; "
      "while :; do sleep 0.02; done";
  RunnerOptions options = Quick();
  options.on_settled = [told = false](const api::TrainingJob& job,
                                      const reconcile::Observed&) mutable {
    if (api::IsFinished(job.status) && !std::exchange(told, true)) ::kill(::getpid(), SIGINT);
  };
  const Played played =
      Play(WithScript(MakeJob("mnist").Chief().Workers(1).Build(), script), options);
  EXPECT_EQ(played.ending.exit_code, 0) << "it had succeeded";
}

}  // namespace
}  // namespace meshtrain::local
