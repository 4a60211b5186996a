#include "operator/api/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "operator/api/json.h"

namespace meshtrain::api {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

std::string Template(std::string_view more = "") {
  return "template: {spec: {containers: [{name: t, image: i" + std::string(more) + "}]}}";
}

TrainingJob Job(const std::string& spec, const std::string& name = "mnist") {
  const auto json = YamlToJson("apiVersion: meshtrain.dev/v1\nkind: TrainingJob\nmetadata: {name: " + name +
                               ", namespace: ml}\nspec: {" + spec + "}");
  EXPECT_TRUE(json.ok()) << json.status().ToString() << spec;
  const auto job = FromJson(*json);
  EXPECT_TRUE(job.ok());
  return *job;
}

std::vector<std::string> Text(const std::vector<FieldError>& errors) {
  std::vector<std::string> out;
  for (const FieldError& error : errors) out.push_back(ToString(error));
  return out;
}

std::string Roles(const std::string& inner) { return "replicaSpecs: {" + inner + "}"; }
std::string Role(const std::string& name, int replicas, const std::string& more = "") {
  return name + ": {replicas: " + std::to_string(replicas) + ", " + Template() + more + "}";
}

struct Case {
  std::string name;
  std::string spec;
  std::vector<std::string> want;
  std::string job = "mnist";
};

class RulesTest : public testing::TestWithParam<Case> {};

TEST_P(RulesTest, SaysWhereAndWhat) {
  EXPECT_THAT(Text(Validate(Job(GetParam().spec, GetParam().job))), ElementsAreArray(GetParam().want));
}

const Case kCases[] = {
    {"Plain", Roles(Role("worker", 1)), {}},
    {"AllRoles", Roles(Role("Chief", 1) + "," + Role("Worker", 2) + "," + Role("PS", 2) + "," + Role("Evaluator", 1)), {}},
    {"NoWorkersBesideAChief", Roles(Role("chief", 1) + "," + Role("worker", 0)), {}},
    {"TwoChiefs", Roles(Role("chief", 2)), {"spec.replicaSpecs.chief.replicas: must be at most 1, got: 2"}},
    {"TwoEvaluators", Roles(Role("worker", 1) + "," + Role("evaluator", 2)),
     {"spec.replicaSpecs.evaluator.replicas: must be at most 1, got: 2"}},
    {"NobodyToDecide", Roles(Role("evaluator", 1)),
     {"spec.replicaSpecs: must have a chief or at least one worker: the job ends when it does"}},
    {"NoTemplate", Roles("worker: {}"),
     {"spec.replicaSpecs: must each have a template with at least one container where there is no program"}},
    {"NoTemplateWithProgram", Roles("worker: {}") + ", program: {seed: 1}", {}},
    {"UpperCaseName", Roles(Role("worker", 1)),
     {"metadata.name: must be a DNS label: lower case letters, digits and '-', beginning with a letter, got: Mnist"},
     "Mnist"},
    {"NameBeginsWithADigit", Roles(Role("worker", 1)),
     {"metadata.name: must be a DNS label: lower case letters, digits and '-', beginning with a letter, got: 1abc"},
     "1abc"},
    {"NameAtTheLimit", Roles(Role("worker", 1)), {}, std::string(54, 'a')},
    {"NameTooLongForItsPods", Roles(Role("worker", 11)),
     {"metadata.name: must leave the longest name of its pods, NAME-ROLE-INDEX, within 63 characters, got: " +
      std::string(54, 'a') + "-worker-10 (64)"},
     std::string(54, 'a')},
    {"NameTooLongForPodsToCome", Roles(Role("worker", 1)) + ", elastic: {minReplicas: 1, maxReplicas: 11}",
     {"metadata.name: must leave the longest name of its pods, NAME-ROLE-INDEX, within 63 characters, got: " +
      std::string(54, 'a') + "-worker-10 (64)"},
     std::string(54, 'a')},
    {"PsWithoutItsStrategy", Roles(Role("worker", 1) + "," + Role("ps", 1)) + ", strategy: Mirrored",
     {"spec.strategy: must be ParameterServer where there are ps replicas, got: Mirrored"}},
    {"StrategyWithoutPs", Roles(Role("worker", 1)) + ", strategy: ParameterServer",
     {"spec.replicaSpecs.ps.replicas: must be at least 1 with the strategy ParameterServer, got: 0"}},
    {"MeshBesideAnotherStrategy", Roles("worker: {}") + ", program: {mesh: {batch: 2}}, strategy: Mirrored",
     {"spec.strategy: must be Mesh, or absent, with program.mesh: the other strategies take no mesh, got: Mirrored"}},
    {"MeshStrategyWithoutAMesh", Roles("worker: {}") + ", program: {seed: 1}, strategy: Mesh",
     {"spec.program.mesh: must be there with the strategy Mesh, got: nothing"}},
    {"ElasticUpsideDown", Roles(Role("worker", 3)) + ", elastic: {minReplicas: 4, maxReplicas: 2}",
     {"spec.elastic.maxReplicas: must be at least minReplicas, got: 2 < 4",
      "spec.replicaSpecs.worker.replicas: must lie between elastic.minReplicas and elastic.maxReplicas, got: 3"}},
    {"ElasticOutside", Roles(Role("worker", 9)) + ", elastic: {minReplicas: 1, maxReplicas: 8}",
     {"spec.replicaSpecs.worker.replicas: must lie between elastic.minReplicas and elastic.maxReplicas, got: 9"}},
    {"WaitsForNobody", Roles(Role("worker", 1)) + ", waitForEvaluator: true",
     {"spec.waitForEvaluator: must be false without an evaluator, got: true"}},
    {"WindowWithoutLimit", Roles(Role("worker", 1)) + ", runPolicy: {backoffWindowSeconds: 5}",
     {"spec.runPolicy.backoffLimit: must be there with backoffWindowSeconds"}},
    {"WindowWithTooLargeALimit", Roles(Role("worker", 1)) + ", runPolicy: {backoffWindowSeconds: 5, backoffLimit: 32}",
     {"spec.runPolicy.backoffLimit: must be below 32 with backoffWindowSeconds, got: 32"}},
    {"BudgetTooLargeForAWindow",
     Roles("worker: {restartBudget: {limit: 32, windowSeconds: 9}, " + Template() + "}"),
     {"spec.replicaSpecs: must have limits below 32 in restartBudgets with windowSeconds"}},
    {"GangLargerThanTheJob", Roles(Role("worker", 2)) + ", runPolicy: {schedulingPolicy: {minAvailable: 3}}",
     {"spec.runPolicy.schedulingPolicy.minAvailable: must be at most the number of all replicas, got: 3"}},
    {"MoreHostsThanAFileHolds", Roles(Role("worker", 10000)),
     {"spec.replicaSpecs: must keep the list of all hosts within 1,000,000 bytes, got: 1410000"},
     "a-job-with-a-name-of-forty-letters-or-so"},
    {"UnknownFieldAndRule", Roles(Role("chief", 2)) + ", stategy: Mesh",
     {"spec.stategy: is not a field, did you mean `strategy`?",
      "spec.replicaSpecs.chief.replicas: must be at most 1, got: 2"}},
};
INSTANTIATE_TEST_SUITE_P(Cases, RulesTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// Each rule of the table that C++ can check is broken by some case above or below.
TEST(RulesTableTest, EveryRuleHasACase) {
  std::set<std::string> said;
  for (const Case& c : kCases) {
    for (const FieldError& error : Validate(Job(c.spec, c.job))) said.insert(error.message.substr(0, 40));
  }
  for (const Rule& rule : Rules()) {
    if (rule.holds == nullptr || rule.on_change) continue;
    EXPECT_TRUE(said.contains((std::string(rule.message) + (rule.got != nullptr ? ", got: " : "")).substr(0, 40)) ||
                std::any_of(said.begin(), said.end(), [&](const std::string& text) {
                  return text.starts_with(rule.message.substr(0, std::min<size_t>(20, rule.message.size())));
                }))
        << rule.message;
  }
}

TEST(RulesTableTest, AnUnreadableFieldIsNamedOnce) {
  EXPECT_THAT(Text(Validate(Job("replicaSpecs: 5"))),
              ElementsAre("spec.replicaSpecs: must be an object, got: 5"));
}

TEST(UpdateTest, NamesImmutableFields) {
  const TrainingJob before = Job(Roles(Role("worker", 1) + "," + Role("ps", 1)) +
                                 ", strategy: ParameterServer, checkpoint: {path: /a}, "
                                 "runPolicy: {managedBy: meshtrain.dev/operator, schedulingPolicy: {queue: a}}");
  EXPECT_THAT(ValidateUpdate(before, before), ElementsAre());
  const TrainingJob scaled = Job(Roles(Role("worker", 4) + "," + Role("ps", 1)) +
                                 ", strategy: ParameterServer, checkpoint: {path: /a}, runPolicy: {suspend: true, "
                                 "managedBy: meshtrain.dev/operator, schedulingPolicy: {queue: a}}");
  EXPECT_THAT(Text(ValidateUpdate(before, scaled)), ElementsAre()) << "workers and suspend may change";
  const TrainingJob after = Job(Roles(Role("chief", 1) + "," + Role("ps", 2)) +
                                ", strategy: Mirrored, checkpoint: {path: /b}, successPolicy: AllWorkers, "
                                "tfConfig: {compat: kubeflow-v1}, runPolicy: {managedBy: me, schedulingPolicy: {queue: b}}");
  EXPECT_THAT(Text(ValidateUpdate(before, after)),
              ElementsAre("spec.strategy: is immutable, got: Mirrored",
                          "spec.replicaSpecs: is immutable in its set of roles",
                          "spec.replicaSpecs: is immutable in the replicas of chief, ps and evaluator",
                          "spec.runPolicy.managedBy: is immutable, got: me",
                          "spec.runPolicy.schedulingPolicy.queue: is immutable, got: b",
                          "spec.successPolicy: is immutable, got: AllWorkers",
                          "spec.tfConfig.compat: is immutable, got: kubeflow-v1",
                          "spec.checkpoint.path: is immutable, got: /b"));
}

TEST(UpdateTest, TemplatesMayChangeWhileSuspended) {
  const auto with = [](const std::string& selector, bool suspend) {
    return Job("replicaSpecs: {worker: {template: {spec: {nodeSelector: {pool: " + selector +
               "}, containers: [{name: t}]}}}}, runPolicy: {suspend: " + (suspend ? "true" : "false") + "}");
  };
  EXPECT_THAT(ValidateUpdate(with("a", true), with("b", false)), ElementsAre()) << "Kueue puts node selectors in";
  EXPECT_THAT(Text(ValidateUpdate(with("a", false), with("b", false))),
              ElementsAre("spec.replicaSpecs: is immutable in its templates unless the job is suspended"));
}

TEST(WarningsTest, TellsWhatIsProbablyNotMeant) {
  const TrainingJob job = Job(
      "replicaSpecs: {Worker: {replicas: 2, template: {spec: {restartPolicy: Never, containers: [{name: t, env: "
      "[{name: TF_CONFIG, value: x}]}]}}}}");
  EXPECT_THAT(Text(Warnings(job)),
              ElementsAre("spec.replicaSpecs.worker.template.spec.restartPolicy: is replaced by the replica spec's "
                          "restartPolicy, got: Never",
                          "spec.replicaSpecs.worker.template.spec.containers: sets TF_CONFIG itself: the operator's is "
                          "not given to it",
                          "spec.replicaSpecs.Worker: is read as worker, but kubectl scale acts on the key worker only"));
  EXPECT_THAT(Warnings(Job(Roles(Role("worker", 2)))), ElementsAre());
  EXPECT_EQ(Warnings(Job(Roles(Role("worker", 3000)))).size(), 1u);
}

}  // namespace
}  // namespace meshtrain::api
