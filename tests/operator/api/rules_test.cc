#include "operator/api/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "operator/api/json.h"
#include "tests/operator/api/manifest_cases.h"

namespace meshtrain::api {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using namespace cases;  // NOLINT

TrainingJob Job(const std::string& spec, const std::string& name = "mnist") {
  const auto json = YamlToJson(Manifest(spec, name));
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

class RulesTest : public ::testing::TestWithParam<Case> {};

TEST_P(RulesTest, SaysWhereAndWhat) {
  EXPECT_THAT(Text(Validate(Job(GetParam().spec, GetParam().job))),
              ElementsAreArray(GetParam().want));
}

INSTANTIATE_TEST_SUITE_P(Cases, RulesTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// Each rule of the table that C++ can check is broken by some case above or below.
TEST(RulesTableTest, EveryRuleHasACase) {
  std::set<std::string> said;
  for (const Case& c : kCases) {
    for (const FieldError& error : Validate(Job(c.spec, c.job))) {
      said.insert(error.message.substr(0, 40));
    }
  }
  for (const Rule& rule : Rules()) {
    if (rule.holds == nullptr || rule.on_change) continue;
    EXPECT_TRUE(
        said.contains(
            (std::string(rule.message) + (rule.got != nullptr ? ", got: " : "")).substr(0, 40)) ||
        std::any_of(said.begin(), said.end(),
                    [&](const std::string& text) {
                      return text.starts_with(
                          rule.message.substr(0, std::min<size_t>(20, rule.message.size())));
                    }))
        << rule.message;
  }
}

TEST(RulesTableTest, AnUnreadableFieldIsNamedOnce) {
  EXPECT_THAT(Text(Validate(Job("replicaSpecs: 5"))),
              ElementsAre("spec.replicaSpecs: must be an object, got: 5"));
}

TEST(UpdateTest, NamesImmutableFields) {
  const TrainingJob before =
      Job(Roles(One("worker", 1) + "," + One("ps", 1)) +
          ", strategy: ParameterServer, checkpoint: {path: /a}, "
          "runPolicy: {managedBy: meshtrain.dev/operator, schedulingPolicy: {queue: a}}");
  EXPECT_THAT(ValidateUpdate(before, before), ElementsAre());
  const TrainingJob scaled =
      Job(Roles(One("worker", 4) + "," + One("ps", 1)) +
          ", strategy: ParameterServer, checkpoint: {path: /a}, runPolicy: {suspend: true, "
          "managedBy: meshtrain.dev/operator, schedulingPolicy: {queue: a}}");
  EXPECT_THAT(Text(ValidateUpdate(before, scaled)), ElementsAre())
      << "workers and suspend may change";
  const TrainingJob after = Job(
      Roles(One("chief", 1) + "," + One("ps", 2)) +
      ", strategy: Mirrored, checkpoint: {path: /b}, successPolicy: AllWorkers, "
      "tfConfig: {compat: kubeflow-v1}, runPolicy: {managedBy: me, schedulingPolicy: {queue: b}}");
  EXPECT_THAT(
      Text(ValidateUpdate(before, after)),
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
               "}, containers: [{name: t}]}}}}, runPolicy: {suspend: " +
               (suspend ? "true" : "false") + "}");
  };
  EXPECT_THAT(ValidateUpdate(with("a", true), with("b", false)), ElementsAre())
      << "Kueue puts node selectors in";
  EXPECT_THAT(ValidateUpdate(with("a", false), with("b", true)), ElementsAre())
      << "and takes them out as it suspends";
  EXPECT_THAT(
      Text(ValidateUpdate(with("a", false), with("b", false))),
      ElementsAre("spec.replicaSpecs: is immutable in its templates unless the job is suspended"));
}

TEST(UpdateTest, ARunningJobKeepsItsProgram) {
  const auto with = [](int seed, bool suspend) {
    return Job("replicaSpecs: {worker: {}}, program: {seed: " + std::to_string(seed) +
               "}, runPolicy: {suspend: " + (suspend ? "true" : "false") + "}");
  };
  EXPECT_THAT(ValidateUpdate(with(1, true), with(2, false)), ElementsAre());
  EXPECT_THAT(Text(ValidateUpdate(with(1, false), with(2, false))),
              ElementsAre("spec.program: is immutable unless the job is suspended"));
}

TEST(UpdateTest, ARunningJobStaysSealed) {
  const auto with = [](const std::string& security, bool suspend) {
    return Job("replicaSpecs: {worker: {}}, program: {seed: 1}" + security +
               ", runPolicy: {suspend: " + (suspend ? "true" : "false") + "}");
  };
  const std::string sealed = ", security: mutualTLS", plain = ", security: none";
  EXPECT_THAT(ValidateUpdate(with(sealed, true), with(plain, false)), ElementsAre());
  for (const std::string& before : {sealed, std::string()}) {
    EXPECT_THAT(Text(ValidateUpdate(with(before, false), with(plain, false))),
                ElementsAre("spec.security: is immutable unless the job is suspended, got: none"));
  }
}

TEST(UpdateTest, ARunningJobKeepsItsClaimsAndItsOutput) {
  const auto with = [](const std::string& claim, const std::string& output, bool suspend) {
    return Job("replicaSpecs: {worker: {}}, program: {seed: 1}, claims: [{name: " + claim +
               ", path: data}], output: {claim: " + output +
               "}, runPolicy: {suspend: " + (suspend ? "true" : "false") + "}");
  };
  EXPECT_THAT(ValidateUpdate(with("a", "o", true), with("b", "o", false)), ElementsAre());
  EXPECT_THAT(Text(ValidateUpdate(with("a", "o", false), with("b", "o", false))),
              ElementsAre("spec.claims: is immutable unless the job is suspended"));
  EXPECT_THAT(Text(ValidateUpdate(with("a", "o", true), with("a", "p", true))),
              ElementsAre("spec.output: is immutable"));
}

TEST(UpdateTest, WorkersOfAJobThatIsNotElasticStayAsManyUnlessItStands) {
  const auto with = [](int workers, const std::string& more) {
    return Job(Roles(One("worker", workers)) + more);
  };
  const std::string elastic = ", elastic: {minReplicas: 1, maxReplicas: 8}";
  const std::string suspended = ", runPolicy: {suspend: true}";
  EXPECT_THAT(Text(ValidateUpdate(with(2, ""), with(4, ""))),
              ElementsAre("spec.replicaSpecs.worker.replicas: cannot be scaled without "
                          "spec.elastic: set elastic.minReplicas and elastic.maxReplicas, or "
                          "suspend the job first, got: 4"));
  EXPECT_THAT(ValidateUpdate(with(2, elastic), with(4, elastic)), ElementsAre());
  EXPECT_THAT(ValidateUpdate(with(2, suspended), with(4, suspended)), ElementsAre());
  EXPECT_THAT(ValidateUpdate(with(2, suspended), with(4, "")), ElementsAre());
  EXPECT_THAT(ValidateUpdate(with(2, ""), with(2, "")), ElementsAre());
}

TEST(WarningsTest, TellsWhatIsProbablyNotMeant) {
  const TrainingJob job =
      Job("replicaSpecs: {Worker: {replicas: 2, template: {spec: {restartPolicy: Never, "
          "containers: [{name: t, env: "
          "[{name: TF_CONFIG, value: x}]}]}}}}");
  EXPECT_THAT(
      Text(Warnings(job)),
      ElementsAre(
          "spec.replicaSpecs.worker.template.spec.restartPolicy: is replaced by the replica spec's "
          "restartPolicy, got: Never",
          "spec.replicaSpecs.worker.template.spec.containers: sets TF_CONFIG itself: the "
          "operator's is "
          "not given to it",
          "spec.replicaSpecs.Worker: is read as worker, but kubectl scale acts on the key worker "
          "only"));
  EXPECT_THAT(Warnings(Job(Roles(One("worker", 2)))), ElementsAre());
  EXPECT_EQ(Warnings(Job(Roles(One("worker", 3000)))).size(), 1u);
}

}  // namespace
}  // namespace meshtrain::api
