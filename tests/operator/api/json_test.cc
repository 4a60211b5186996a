#include "operator/api/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "operator/api/rules.h"
#include "runtime/base/time_text.h"

namespace meshtrain::api {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TrainingJob Read(std::string_view yaml) {
  const auto json = YamlToJson(yaml);
  EXPECT_TRUE(json.ok()) << json.status().ToString();
  auto job = FromJson(*json);
  EXPECT_TRUE(job.ok()) << job.status().ToString();
  return *job;
}

std::vector<std::string> ProblemsOf(std::string_view spec) {
  std::vector<std::string> out;
  const TrainingJob job =
      Read("apiVersion: meshtrain.dev/v1\nkind: TrainingJob\nmetadata: {name: a}\nspec:\n" +
           std::string(spec));
  for (const FieldError& error : job.problems) out.push_back(ToString(error));
  return out;
}

constexpr std::string_view kFull = R"(
apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata:
  name: mnist
  namespace: ml
  uid: 0123
  resourceVersion: "77"
  generation: 3
  labels: {team: vision}
  creationTimestamp: "2026-01-02T03:04:05Z"
spec:
  replicaSpecs:
    Master:
      template: {spec: {containers: [{name: tensorflow, image: tf, env: [{name: TF_CONFIG, value: x}]}]}}
    Worker:
      replicas: 3
      restartPolicy: ExitCode
      restartBudget: {limit: 2, windowSeconds: 60}
      template:
        metadata: {labels: {a: b}}
        spec:
          restartPolicy: Always
          containers:
          - {name: sidecar, image: s}
          - name: trainer
            image: t
            workingDir: /src
            ports: [{name: tfjob-port, containerPort: 9000}, {name: meshtrain-http, containerPort: 80}]
  strategy: MultiWorkerMirrored
  claims:
  - {name: digits, path: data}
  - {name: scratch, path: /scratch, subPath: mnist, readOnly: false}
  output: {claim: runs, folder: vision/mnist}
  checkpoint: {path: /ckpt, everySteps: 100, keep: 3, volumeClaimTemplate: {spec: {accessModes: [ReadWriteMany]}}}
  runPolicy:
    cleanPodPolicy: Running
    ttlSecondsAfterFinished: 0
    activeDeadlineSeconds: 3600
    startupDeadlineSeconds: 60
    progressDeadlineSeconds: 30
    peerReturnSeconds: 0
    backoffLimit: 3
    backoffWindowSeconds: 600
    suspend: true
    managedBy: kueue.x-k8s.io/multikueue
    schedulingPolicy: {minAvailable: 4, queue: q, priorityClass: high, minResources: {cpu: 4}, scheduleTimeoutSeconds: 9}
  successPolicy: AllWorkers
  failurePolicy:
    rules:
    - {roles: [WORKER], exitCodes: [1, 2], reasons: [OOMKilled], action: RestartAll}
    - {action: Fail}
  elastic: {minReplicas: 1, maxReplicas: 8}
  tfConfig: {compat: kubeflow-v1}
)";

TEST(JsonTest, ReadsEveryField) {
  const TrainingJob job = Read(kFull);
  EXPECT_THAT(job.problems, ElementsAre());
  EXPECT_EQ(job.metadata.name, "mnist");
  EXPECT_EQ(job.metadata.generation, 3);
  EXPECT_EQ(FormatTime(*job.metadata.created), "2026-01-02T03:04:05Z");
  EXPECT_THAT(job.odd_role_keys, ElementsAre("Worker"));
  const Spec& spec = job.spec;
  EXPECT_EQ(Replicas(spec, Role::kChief), 1) << "Master is the chief, and one is the default";
  const ReplicaSpec& chief = spec.replica_specs.at(Role::kChief);
  EXPECT_EQ(chief.restart_policy, kRestartNever);
  EXPECT_TRUE(chief.pod_template.has_tf_config);
  EXPECT_EQ(chief.pod_template.training_container, "tensorflow");
  EXPECT_EQ(chief.pod_template.port, 2222);
  EXPECT_FALSE(chief.pod_template.has_port);
  const ReplicaSpec& worker = spec.replica_specs.at(Role::kWorker);
  EXPECT_EQ(worker.pod_template.containers, 2);
  EXPECT_EQ(worker.pod_template.training_container, "trainer");
  EXPECT_EQ(worker.pod_template.port, 9000);
  EXPECT_EQ(worker.pod_template.http_port, 80);
  EXPECT_EQ(worker.pod_template.restart_policy, "Always");
  EXPECT_EQ(worker.restart_budget, (RestartBudget{.limit = 2, .window_seconds = 60}));
  EXPECT_TRUE(worker.pod_template.has_image);
  EXPECT_EQ(worker.pod_template.working_directory, "/src");
  EXPECT_THAT(
      spec.claims,
      ElementsAre(
          Claim{.name = "digits", .path = "data"},
          Claim{.name = "scratch", .path = "/scratch", .sub_path = "mnist", .read_only = false}));
  EXPECT_EQ(spec.output, (Output{.claim = "runs", .folder = "vision/mnist"}));
  EXPECT_EQ(spec.checkpoint->every_steps, 100);
  EXPECT_EQ(spec.checkpoint->volume_claim_template,
            R"({"spec":{"accessModes":["ReadWriteMany"]}})");
  EXPECT_EQ(spec.run_policy.ttl_seconds_after_finished, 0);
  EXPECT_TRUE(spec.run_policy.suspend);
  EXPECT_EQ(spec.run_policy.scheduling_policy->min_resources.at("cpu"), "4");
  EXPECT_EQ(spec.failure_rules.size(), 2u);
  EXPECT_THAT(spec.failure_rules[0].roles, ElementsAre(Role::kWorker));
  EXPECT_EQ(spec.elastic, (Elastic{1, 8}));
  EXPECT_EQ(spec.tf_config_compat, kCompatKubeflowV1);
}

TEST(JsonTest, WrittenAndReadAgainItIsTheSame) {
  TrainingJob job = Read(kFull);
  job.odd_role_keys.clear();  // written as `worker`
  const auto again = FromJson(ToJson(job));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, job);
  EXPECT_EQ(ToJson(*again), ToJson(job));
}

TEST(JsonTest, StructDefaultsAreTheSchemasDefaults) {
  const TrainingJob job = Read(
      "apiVersion: meshtrain.dev/v1\nkind: TrainingJob\nspec: {replicaSpecs: {worker: {}}, "
      "checkpoint: {path: /c}}");
  Spec want;
  want.replica_specs[Role::kWorker] = {};
  want.checkpoint = Checkpoint{.path = "/c"};
  EXPECT_EQ(job.spec, want);
}

TEST(JsonTest, StrategyIsMeshWhereTheProgramHasOne) {
  const std::string head =
      "apiVersion: meshtrain.dev/v1\nkind: TrainingJob\nspec:\n  replicaSpecs: {worker: {}}\n";
  EXPECT_EQ(Read(head + "  program: {mesh: {batch: 8}}").spec.strategy, "Mesh");
  EXPECT_EQ(Read(head + "  program: {seed: 1}").spec.strategy, "");
}

TEST(JsonTest, NamesFieldAndValueOfEachProblem) {
  EXPECT_THAT(ProblemsOf("  replicaSpecs: {worker: {replicas: -1}}"),
              ElementsAre("spec.replicaSpecs.worker.replicas: must be at least 0, got: -1"));
  EXPECT_THAT(ProblemsOf("  replicaSpecs: {worker: {replicas: three}}"),
              ElementsAre("spec.replicaSpecs.worker.replicas: must be an integer, got: \"three\""));
  EXPECT_THAT(ProblemsOf("  replicaSpecs: {worker: {replicas: 99999999999999999999}}"),
              ElementsAre("spec.replicaSpecs.worker.replicas: must be an integer, got: 1e+20"));
  EXPECT_THAT(ProblemsOf("  replicaSpecs: {worker: {restartPolicy: OnFalure}}"),
              ElementsAre("spec.replicaSpecs.worker.restartPolicy: must be one of Always, "
                          "OnFailure, Never, ExitCode, "
                          "got: \"OnFalure\", did you mean `OnFailure`?"));
  EXPECT_THAT(ProblemsOf("  replicaSpecs: {wroker: {}}"),
              ElementsAre("spec.replicaSpecs.wroker: is not a role, must be chief, worker, ps or "
                          "evaluator, did you "
                          "mean `worker`?"));
  EXPECT_THAT(ProblemsOf("  replicaSpecs: {Chief: {}, master: {}}"),
              ElementsAre("spec.replicaSpecs.master: is a second spelling of the role chief"));
  EXPECT_THAT(
      ProblemsOf("  replicaSpecs: {worker: {}}\n  runPolicy: {backofLimit: 3}"),
      ElementsAre("spec.runPolicy.backofLimit: is not a field, did you mean `backoffLimit`?"));
  EXPECT_THAT(
      ProblemsOf("  replicaSpecs: {worker: {template: {spec: {containers: [{command: echo, args: "
                 "{a: b}}]}}}}"),
      ElementsAre("spec.replicaSpecs.worker.template.spec.containers[0].command: must be a list, "
                  "got: \"echo\"",
                  "spec.replicaSpecs.worker.template.spec.containers[0].args: must be a list, got: "
                  "{\"a\":\"b\"}"));
  EXPECT_THAT(ProblemsOf("  replicaSpecs: []"),
              ElementsAre("spec.replicaSpecs: must be an object, got: []"));
  EXPECT_THAT(ProblemsOf("  runPolicy: {}"),
              ElementsAre("spec.replicaSpecs: must be there, got: nothing"));
  EXPECT_THAT(
      ProblemsOf("  replicaSpecs: {worker: {}}\n  failurePolicy: {rules: [{roles: [x]}]}"),
      ElementsAre(
          "spec.failurePolicy.rules[0].action: must be there, got: nothing",
          "spec.failurePolicy.rules[0].roles: must be chief, worker, ps or evaluator, got: \"x\""));
}

TEST(JsonTest, ANameOrANamespaceThatIsNoTextIsNamed) {
  const std::string head = "apiVersion: meshtrain.dev/v1\nkind: TrainingJob\nmetadata: ";
  const std::string spec = "\nspec: {replicaSpecs: {worker: {}}, program: {}}";
  const TrainingJob job = Read(head + "{name: 5, namespace: [a]}" + spec);
  EXPECT_THAT(job.problems,
              ElementsAre(FieldError{"metadata.name", "must be a string, got: 5"},
                          FieldError{"metadata.namespace", "must be a string, got: [\"a\"]"}));
  EXPECT_EQ(Validate(job).size(), 2u) << "and nothing that follows from it";
  EXPECT_TRUE(Read(head + "{name: a, namespace: null}" + spec).problems.empty());
  EXPECT_THAT(Validate(Read(head + "{}" + spec))[0].message, ::testing::EndsWith(", got: nothing"));
}

TEST(JsonTest, AnUnreadableFieldLeavesTheRestReadable) {
  const TrainingJob job = Read(
      "apiVersion: meshtrain.dev/v1\nkind: TrainingJob\nmetadata: {name: a}\n"
      "spec: {replicaSpecs: {worker: {replicas: x, restartPolicy: OnFailure}}}");
  EXPECT_EQ(job.spec.replica_specs.at(Role::kWorker).restart_policy, "OnFailure");
  EXPECT_EQ(job.spec.replica_specs.at(Role::kWorker).replicas, 1);
  EXPECT_EQ(job.problems.size(), 1u);
}

TEST(JsonTest, RefusesOtherKinds) {
  EXPECT_EQ(FromJson("[1]").status().message(), "TrainingJob: must be a JSON object, got: [1]");
  EXPECT_EQ(FromJson(R"({"apiVersion":"kubeflow.org/v1","kind":"TFJob"})").status().message(),
            "apiVersion: must be meshtrain.dev/v1, got: \"kubeflow.org/v1\"");
}

JobStatus FullStatus() {
  const TimePoint t = *ParseTime("2026-05-06T07:08:09Z");
  JobStatus status;
  status.conditions[ConditionType::kCreated] = {true, "JobCreated", "x", 2, t};
  status.conditions[ConditionType::kRunning] = {false, "Restarting", "", 2, t};
  status.phase = "Restarting";
  status.ready = "3/4";
  status.restarts = 2;
  status.replica_statuses[Role::kWorker] = {4, 3, 0, 1, 2};
  status.label_selector = "a=b";
  status.observed_generation = 2;
  status.start_time = status.last_reconcile_time = t;
  status.active_seconds_before = 1.5;
  status.progress = ProgressStatus{
      .step = 7, .total_steps = 10, .loss = 0.25, .observed_at = t, .advanced_at = t};
  status.plan = PlanStatus{.mesh = "batch=8", .peak_bytes_per_device = 5, .hash = "h"};
  status.checkpoint = CheckpointStatus{5, "/c/5"};
  status.worst = {
      {.pod = "a-worker-0", .exit_code = 137, .reason = "OOMKilled", .last_line = "boom"}};
  status.recovery = {
      .attempt = 2,
      .restart_all_below = 1,
      .counted = 1,
      .disruptions = 1,
      .counted_by_role = {{Role::kWorker, 1}},
      .recent = {{t, Role::kWorker},
                 {.at = t, .role = Role::kChief, .counted = false, .in_place = true}},
      .in_place = {.told = 2, .past = -4, .lost = {{"feed", 3}, {"beef", 1}}},
      .in_place_by_role = {{Role::kWorker, {.told = 2, .past = 1}}},
      .out_of_memory = {{"worker-0", 1}},
      .lost_incarnations = {"feed"},
      .newest_pod = t};
  status.progress->slowest = Straggler{"worker-3", 2.5, 1.25};
  status.conditions[ConditionType::kStraggling] = {true, "SlowReplica", "x", 2, t};
  status.goodput = {.waiting_seconds = 2,
                    .running_seconds = 9,
                    .restarting_seconds = 1,
                    .lost_steps = 3,
                    .ratio = 0.9};
  return status;
}

TEST(JsonTest, StatusRoundTrips) {
  TrainingJob job = Read(kFull);
  job.odd_role_keys.clear();
  job.status = FullStatus();
  const auto again = FromJson(ToJson(job));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->status, job.status);
}

// Restarts in place that an operator of before counted in other words stay counted.
TEST(JsonTest, ATallyOfAnOperatorBeforeStaysCounted) {
  const auto job = FromJson(
      R"({"apiVersion":"meshtrain.dev/v1","kind":"TrainingJob","spec":{"replicaSpecs":{"worker":{}}},)"
      R"("status":{"recovery":{"inPlace":{"incidents":2,"own":3,"past":4}}}})");
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->status.recovery.in_place.total(), 9);
}

TEST(JsonTest, StatusPatchHoldsOnlyWhatChanged) {
  const JobStatus before = FullStatus();
  EXPECT_EQ(StatusMergePatch(before, before), "");
  JobStatus after = before;
  after.progress->step = 8;
  after.checkpoint.reset();
  EXPECT_EQ(StatusMergePatch(before, after),
            R"({"status":{"checkpoint":null,"progress":{"percent":"80%","step":8}}})");
}

TEST(JsonTest, OfAnotherVersionOfWhatIsKnownOnlyTheRestIsRead) {
  const auto text = [](const std::string& uid, int generation, const std::string& spec, int step) {
    return R"({"metadata":{"managedFields":[{"spec":[1]}],"name":"j","uid":")" + uid +
           R"(","generation":)" + std::to_string(generation) + R"(},"spec":)" + spec +
           R"(,"status":{"progress":{"step":)" + std::to_string(step) +
           R"(}},"apiVersion":"meshtrain.dev/v1","kind":"TrainingJob"})";
  };
  const std::string one = R"({"replicaSpecs":{"Worker":{"replicas":2}},"managedFields":1})";
  const std::string two = R"({"replicaSpecs":{"worker":{"replicas":3}}})";
  const auto before = FromJson(text("u", 1, one, 7));
  ASSERT_TRUE(before.ok());
  ASSERT_EQ(before->problems.size(), 1u);
  ASSERT_EQ(before->odd_role_keys.size(), 1u);
  // The spec of its generation cannot be another, so that it shows that it is not read.
  auto after = FromJson(text("u", 1, two, 8), &*before);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->status.progress->step, 8);
  after->status = before->status;
  EXPECT_EQ(*after, *before);
  for (const auto& [uid, generation] : {std::pair("u", 2), {"v", 1}}) {
    const std::string other = text(uid, generation, two, 8);
    EXPECT_EQ(*FromJson(other, &*before), *FromJson(other));
  }
  EXPECT_FALSE(FromJson("{", &*before).ok());
}

TEST(JsonTest, AForeignStatusIsNotHeldAgainstTheJob) {
  const auto job = FromJson(
      R"({"apiVersion":"meshtrain.dev/v1","kind":"TrainingJob","spec":{"replicaSpecs":{"worker":{}}},)"
      R"("status":{"phase":7,"conditions":[{"type":"Nonsense","status":"True"},{"type":"Failed","status":"True"},3],)"
      R"("unknown":{}}})");
  ASSERT_TRUE(job.ok());
  EXPECT_THAT(job->problems, ElementsAre());
  EXPECT_TRUE(IsTrue(job->status, ConditionType::kFailed));
}

// Whatever is put in place of a value: reading never crashes, and a job without problems is written
// and read alike.
TEST(JsonTest, SurvivesEveryMutationOfAManifest) {
  const char* given = std::getenv("MT_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 11;
  SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::string original = *YamlToJson(kFull);
  const std::string values[] = {"null",  "-1",   "1e99", "\"\"",
                                "[]",    "{}",   "true", "18446744073709551615",
                                "\"x\"", "[{}]", "0.5",  "{\"a\":[null]}"};
  int with_problems = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = original;
    // Replace what stands after a colon outside of strings, up to the next delimiter.
    std::vector<size_t> colons;
    for (size_t i = 1; i < text.size(); ++i) {
      if (text[i] == ':' && text[i - 1] == '"') colons.push_back(i + 1);
    }
    const size_t from = colons[random() % colons.size()];
    int depth = 0;
    bool quoted = false;
    size_t to = from;
    for (; to < text.size(); ++to) {
      if (text[to] == '"') quoted = !quoted;
      if (quoted) continue;
      if (text[to] == '{' || text[to] == '[') ++depth;
      if ((text[to] == '}' || text[to] == ']') && depth-- == 0) break;
      if (text[to] == ',' && depth == 0) break;
    }
    text.replace(from, to - from, values[random() % std::size(values)]);
    const auto job = FromJson(text);
    if (!job.ok()) continue;
    if (!job->problems.empty()) {
      ++with_problems;
      continue;
    }
    TrainingJob want = *job;
    want.odd_role_keys.clear();
    const auto again = FromJson(ToJson(want));
    ASSERT_TRUE(again.ok()) << text;
    ASSERT_EQ(*again, want) << text;
  }
  EXPECT_GT(with_problems, 300);
}

}  // namespace
}  // namespace meshtrain::api
