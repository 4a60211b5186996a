#include "tests/support/lifecycle_cases.h"

#include "tests/support/job_builder.h"

namespace meshtrain::testing_support {
namespace {

using cluster::Role;
using cluster::TaskId;

constexpr TaskId kChief{Role::kChief, 0};
constexpr TaskId kWorker0{Role::kWorker, 0};
constexpr TaskId kWorker1{Role::kWorker, 1};
constexpr TaskId kPs0{Role::kPs, 0};
constexpr TaskId kEvaluator{Role::kEvaluator, 0};

void Success(std::vector<LifecycleCase>* cases) {
  const auto all_workers = [](api::TrainingJob& job) {
    job.spec.success_policy = api::kSuccessAllWorkers;
  };
  const auto wait = [](api::TrainingJob& job) { job.spec.wait_for_evaluator = true; };
  cases->push_back({.name = "ALoneWorkerSucceeds",
                    .job = MakeJob("mnist").Workers(1).Build(),
                    .ends = {{kWorker0, 0}},
                    .phase = "Succeeded",
                    .reason = "JobSucceeded",
                    .message = "mnist-worker-0 has succeeded",
                    .kept = {kWorker0}});
  cases->push_back({.name = "TheChiefDecides",
                    .job = MakeJob("mnist").Chief().Workers(2).Build(),
                    .ends = {{kWorker0, 0}, {kWorker1, 0}, {kChief, 0}},
                    .phase = "Succeeded",
                    .message = "mnist-chief-0 has succeeded",
                    .kept = {kChief, kWorker0, kWorker1}});
  cases->push_back({.name = "TheChiefDecidesWhileWorkersRun",
                    .job = MakeJob("mnist").Chief().Workers(2).Build(),
                    .ends = {{kChief, 0}},
                    .phase = "Succeeded",
                    .message = "mnist-chief-0 has succeeded",
                    .kept = {kChief}});
  cases->push_back({.name = "WithoutAChiefWorkerZeroDecides",
                    .job = MakeJob("mnist").Workers(2).Build(),
                    .ends = {{kWorker1, 0}, {kWorker0, 0}},
                    .phase = "Succeeded",
                    .message = "mnist-worker-0 has succeeded",
                    .kept = {kWorker0, kWorker1}});
  cases->push_back({.name = "AnotherWorkerDoesNotDecide",
                    .job = MakeJob("mnist").Workers(2).Build(),
                    .ends = {{kWorker1, 0}},
                    .phase = "Running",
                    .kept = {kWorker1}});
  cases->push_back({.name = "AllWorkersWaitsForTheLast",
                    .job = MakeJob("mnist").Workers(2).With(all_workers).Build(),
                    .ends = {{kWorker0, 0}, {kWorker1, 0}},
                    .phase = "Succeeded",
                    .message = "all workers have succeeded",
                    .kept = {kWorker0, kWorker1}});
  cases->push_back({.name = "AllWorkersWaitsForTheChiefToo",
                    .job = MakeJob("mnist").Chief().Workers(2).With(all_workers).Build(),
                    .ends = {{kWorker0, 0}, {kWorker1, 0}, {kChief, 0}},
                    .phase = "Succeeded",
                    .kept = {kChief, kWorker0, kWorker1}});
  cases->push_back({.name = "TheEvaluatorMayBeWaitedFor",
                    .job = MakeJob("mnist").Chief().Evaluator().With(wait).Build(),
                    .ends = {{kChief, 0}, {kEvaluator, 0}},
                    .phase = "Succeeded",
                    .kept = {kChief, kEvaluator}});
  cases->push_back({.name = "TheEvaluatorNeedNotBeWaitedFor",
                    .job = MakeJob("mnist").Chief().Evaluator().Build(),
                    .ends = {{kChief, 0}},
                    .phase = "Succeeded",
                    .kept = {kChief}});
}

struct ExitCase {
  std::string name;
  std::string_view policy;
  int code;
  bool restarts;
};

void Exits(std::vector<LifecycleCase>* cases) {
  const ExitCase exits[] = {
      {"NeverFails", api::kRestartNever, 138, false},
      {"Usage", api::kRestartExitCode, 64, false},
      {"BadConfig", api::kRestartExitCode, 78, false},
      {"Internal", api::kRestartExitCode, 70, false},
      {"NotFinite", api::kRestartExitCode, 79, false},
      {"CannotCreate", api::kRestartExitCode, 73, false},
      {"Io", api::kRestartExitCode, 74, true},
      {"One", api::kRestartExitCode, 1, false},
      {"Below128", api::kRestartExitCode, 127, false},
      {"From128", api::kRestartExitCode, 128, true},
      {"Interrupted", api::kRestartExitCode, 130, true},
      {"Aborted", api::kRestartExitCode, 134, false},
      {"Killed", api::kRestartExitCode, 137, true},
      {"RetryMe", api::kRestartExitCode, 138, true},
      {"Segfault", api::kRestartExitCode, 139, false},
      {"Terminated", api::kRestartExitCode, 143, true},
  };
  for (const ExitCase& exit : exits) {
    const std::string code = std::to_string(exit.code);
    LifecycleCase c{.name = "Exit" + code + exit.name,
                    .job = MakeJob("mnist").Chief().Workers(2, exit.policy).Build(),
                    .ends = {{kWorker1, exit.code}},
                    .phase = exit.restarts ? "Running" : "Failed",
                    .restarts = exit.restarts ? 1 : 0,
                    .attempt = exit.restarts ? 1 : 0};
    if (!exit.restarts) {
      c.reason = "PodFailed";
      c.message = "mnist-worker-1 failed with exit code " + code + " (Error)";
      c.kept = {kWorker1};
    }
    cases->push_back(std::move(c));
  }
  // The kubelet's own restarts: the pod stays.
  cases->push_back({.name = "OnFailureRestartsInPlace",
                    .job = MakeJob("mnist").Chief().Workers(2, api::kRestartOnFailure).Build(),
                    .ends = {{kWorker1, 1}, {kWorker1, 78}},
                    .phase = "Running",
                    .restarts = 2});
  cases->push_back({.name = "OnFailureLetsASuccessBe",
                    .job = MakeJob("mnist")
                               .Chief(api::kRestartOnFailure)
                               .Workers(1, api::kRestartOnFailure)
                               .Build(),
                    .ends = {{kChief, 1}, {kChief, 0}},
                    .phase = "Succeeded",
                    .restarts = 1,
                    .kept = {kChief}});
  cases->push_back({.name = "AlwaysRestartsEvenASuccess",
                    .job = MakeJob("mnist").Workers(1, api::kRestartAlways).Build(),
                    .ends = {{kWorker0, 0}},
                    .phase = "Running",
                    .restarts = 1});
}

void Budgets(std::vector<LifecycleCase>* cases) {
  cases->push_back({.name = "NoRestartIsAllowed",
                    .job = MakeJob("mnist").Chief().Workers(1).Backoff(0).Build(),
                    .ends = {{kWorker0, 138}},
                    .phase = "Failed",
                    .reason = "BackoffLimitExceeded",
                    .message = "mnist-worker-0 failed with exit code 138 (Error), after 0 restarts",
                    .restarts = 1,
                    .kept = {kWorker0}});
  cases->push_back({.name = "OneRestartIsAllowed",
                    .job = MakeJob("mnist").Chief().Workers(1).Backoff(1).Build(),
                    .ends = {{kWorker0, 138}, {kWorker0, 137}},
                    .phase = "Failed",
                    .reason = "BackoffLimitExceeded",
                    .message = "mnist-worker-0 failed with exit code 137",
                    .restarts = 2,
                    .kept = {kWorker0}});
  cases->push_back(
      {.name = "RestartsInPlaceCountToo",
       .job = MakeJob("mnist").Chief().Workers(1, api::kRestartOnFailure).Backoff(1).Build(),
       .ends = {{kWorker0, 1}, {kWorker0, 1}},
       .phase = "Failed",
       .reason = "BackoffLimitExceeded",
       .restarts = 2});
  const auto window = [](api::TrainingJob& job) {
    job.spec.run_policy.backoff_window_seconds = 100'000;
  };
  cases->push_back({.name = "AWindowCountsRecreations",
                    .job = MakeJob("mnist").Chief().Workers(1).Backoff(1).With(window).Build(),
                    .ends = {{kWorker0, 138}, {kWorker0, 138}},
                    .phase = "Failed",
                    .reason = "BackoffLimitExceeded",
                    .restarts = 2,
                    .kept = {kWorker0}});
  cases->push_back({.name = "AWindowCountsRestartsInPlace",
                    .job = MakeJob("mnist")
                               .Chief()
                               .Workers(1, api::kRestartOnFailure)
                               .Backoff(1)
                               .With(window)
                               .Build(),
                    .ends = {{kWorker0, 1}, {kWorker0, 1}},
                    .phase = "Failed",
                    .reason = "BackoffLimitExceeded",
                    .restarts = 2});
  cases->push_back({.name = "AWindowOfARoleCountsRestartsInPlace",
                    .job = MakeJob("mnist")
                               .Chief()
                               .Workers(1, api::kRestartOnFailure)
                               .With([](api::TrainingJob& job) {
                                 job.spec.replica_specs[Role::kWorker].restart_budget =
                                     api::RestartBudget{.limit = 1, .window_seconds = 100'000};
                               })
                               .Build(),
                    .ends = {{kWorker0, 1}, {kWorker0, 1}},
                    .phase = "Failed",
                    .reason = "RestartBudgetExceeded",
                    .restarts = 2});
  // Each rank is brought back in place with 138, one after the other, twice over.
  cases->push_back({.name = "TwoIncidentsInPlaceCountTwice",
                    .job = MakeJob("mnist").Workers(2, api::kRestartOnFailure).Backoff(2).Build(),
                    .ends = {{kWorker0, 138, "a"},
                             {kWorker1, 138, "a"},
                             {kWorker1, 138, "b"},
                             {kWorker0, 138, "b"}},
                    .phase = "Running",
                    .restarts = 2});
  cases->push_back(
      {.name = "WhatARankDoesAloneIsItsOwn",
       .job = MakeJob("mnist").Workers(2, api::kRestartOnFailure).Backoff(2).Build(),
       .ends = {{kWorker1, 138, "a"}, {kWorker0, 138, "a"}, {kWorker0, 1}, {kWorker0, 1}},
       .phase = "Failed",
       .reason = "BackoffLimitExceeded",
       .restarts = 3});
  cases->push_back({.name = "ARoleHasABudgetOfItsOwn",
                    .job = MakeJob("mnist")
                               .Chief()
                               .Workers(1)
                               .With([](api::TrainingJob& job) {
                                 job.spec.replica_specs[Role::kWorker].restart_budget =
                                     api::RestartBudget{.limit = 0};
                               })
                               .Build(),
                    .ends = {{kChief, 138}, {kWorker0, 138}},
                    .phase = "Failed",
                    .reason = "RestartBudgetExceeded",
                    .restarts = 2,
                    .kept = {kWorker0}});
}

void Deadlines(std::vector<LifecycleCase>* cases) {
  cases->push_back({.name = "AnActiveDeadlineEndsAJobThatRuns",
                    .job = MakeJob("mnist")
                               .Chief()
                               .Workers(1)
                               .Clean(api::kCleanRunning)
                               .With([](api::TrainingJob& job) {
                                 job.spec.run_policy.active_deadline_seconds = 1;
                               })
                               .Build(),
                    .phase = "Failed",
                    .reason = "DeadlineExceeded"});
  cases->push_back({.name = "AStartupDeadlineIsForTheStartOnly",
                    .job = MakeJob("mnist")
                               .Chief()
                               .Workers(1)
                               .With([](api::TrainingJob& job) {
                                 job.spec.run_policy.startup_deadline_seconds = 60;
                               })
                               .Build(),
                    .ends = {{kWorker0, 138}},
                    .phase = "Running",
                    .restarts = 1,
                    .attempt = 1});
  cases->push_back(
      {.name = "AStartupDeadlineEndsAJobThatNeverRan",
       .job =
           MakeJob("mnist")
               .Chief()
               .Workers(1)
               .With([](api::TrainingJob& job) {
                 job.spec.run_policy.startup_deadline_seconds = 1;
                 job.spec.checkpoint.emplace(api::Checkpoint{.path = "/c"}).volume_claim_template =
                     R"({"accessModes":["ReadWriteMany"]})";
               })
               .Build(),
       .refused = true,
       .phase = "Failed",
       .reason = "StartupDeadlineExceeded",
       .message = "the job was not running within runPolicy.startupDeadlineSeconds, 1 s"});
}

void Suspensions(std::vector<LifecycleCase>* cases) {
  cases->push_back({.name = "SuspendedItKeepsNoPods",
                    .job = MakeJob("mnist").Chief().Workers(2).Clean(api::kCleanNone).Build(),
                    .suspended = true,
                    .phase = "Suspended",
                    .reason = "JobSuspended"});
  cases->push_back({.name = "SuspendedItRemembersItsRestarts",
                    .job = MakeJob("mnist").Chief().Workers(2).Build(),
                    .ends = {{kWorker1, 138}, {kWorker0, 0}},
                    .suspended = true,
                    .phase = "Suspended",
                    .reason = "JobSuspended",
                    .restarts = 1});
}

void Rules(std::vector<LifecycleCase>* cases) {
  const auto with = [](std::vector<api::FailureRule> rules) {
    return MakeJob("mnist")
        .Chief()
        .Workers(2)
        .With([&](api::TrainingJob& job) { job.spec.failure_rules = std::move(rules); })
        .Build();
  };
  cases->push_back({.name = "RuleRestartAllMakesEveryPodAgain",
                    .job = with({{.exit_codes = {138}, .action = "RestartAll"}}),
                    .ends = {{kWorker1, 138}},
                    .phase = "Running",
                    .restarts = 1,
                    .attempt = 1});
  cases->back().ends.push_back({kWorker0, 0});  // of the new attempt
  cases->back().kept = {kWorker0};
  cases->push_back(
      {.name = "RuleRestartForgivesAPermanentCode",
       .job = with({{.roles = {Role::kWorker}, .exit_codes = {1}, .action = "Restart"}}),
       .ends = {{kWorker1, 1}},
       .phase = "Running",
       .restarts = 1,
       .attempt = 1});
  cases->push_back({.name = "RuleOfAnotherRoleDoesNotMatch",
                    .job = with({{.roles = {Role::kPs}, .action = "Restart"}}),
                    .ends = {{kWorker1, 1}},
                    .phase = "Failed",
                    .kept = {kWorker1}});
  cases->push_back(
      {.name = "RuleFailEndsARetryableOne",
       .job = with({{.exit_codes = {138}, .action = "Fail"}}),
       .ends = {{kWorker1, 138}},
       .phase = "Failed",
       .message =
           "mnist-worker-1 failed with exit code 138 (Error), failurePolicy.rules[0] says Fail",
       .kept = {kWorker1}});
  cases->push_back({.name = "RuleIgnoreLeavesItLyingThere",
                    .job = with({{.exit_codes = {1}, .action = "Ignore"}}),
                    .ends = {{kWorker1, 1}, {kChief, 0}},
                    .phase = "Succeeded",
                    .kept = {kChief, kWorker1}});
}

void CleanUp(std::vector<LifecycleCase>* cases) {
  for (const std::string_view policy : {api::kCleanAll, api::kCleanRunning, api::kCleanNone}) {
    for (const bool fails : {false, true}) {
      LifecycleCase c{
          .name = "Clean" + std::string(policy) + (fails ? "AfterAFailure" : "AfterASuccess"),
          .job = MakeJob("mnist").Chief().Workers(1).Ps(1).Clean(policy).Build(),
          .ends = {{kChief, fails ? 1 : 0}},
          .phase = fails ? "Failed" : "Succeeded"};
      if (policy != api::kCleanAll) c.kept = {kChief};
      cases->push_back(std::move(c));
    }
  }
  cases->push_back(
      {.name = "APsThatEndsIsMadeAgain",
       .job = MakeJob("mnist").Chief().Workers(1).Ps(1).Clean(api::kCleanRunning).Build(),
       .ends = {{kPs0, 143}, {kChief, 0}},
       .phase = "Succeeded",
       .restarts = 1,
       .kept = {kChief}});
}

}  // namespace

std::vector<LifecycleCase> LifecycleCases() {
  std::vector<LifecycleCase> cases;
  Success(&cases);
  Exits(&cases);
  Budgets(&cases);
  Deadlines(&cases);
  Suspensions(&cases);
  Rules(&cases);
  CleanUp(&cases);
  return cases;
}

}  // namespace meshtrain::testing_support
