// Who may reach a job's pods.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "operator/reconcile/children.h"
#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPeers[] =
    R"([{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"meshtrain-system"}},
         "podSelector":{"matchLabels":{"app.kubernetes.io/name":"meshtrain"}}},
        {"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"monitoring"}}}])";

Settings With(const char* peers) {
  Settings settings;
  settings.http_peers = peers;
  return settings;
}

TEST(NetworkPolicyTest, AJobsPortsAreForItselfAndItsPagesForThePeers) {
  const api::TrainingJob job = MakeJob("mnist").Workers(2).Build();
  const CreateNetworkPolicy policy = JobNetworkPolicy(job, With(kPeers));
  EXPECT_THAT(policy.name, ::testing::MatchesRegex("mnist-network-[0-9a-f]{8}"));
  const Json own = R"({"matchLabels":{"app.kubernetes.io/managed-by":"meshtrain-operator",
                       "meshtrain.dev/job-name":"mnist"}})"_json;
  EXPECT_EQ(Json::parse(policy.body),
            (Json{{"apiVersion", "networking.k8s.io/v1"},
                  {"kind", "NetworkPolicy"},
                  {"metadata",
                   {{"name", policy.name},
                    {"namespace", "ml"},
                    {"labels", own["matchLabels"]},
                    {"ownerReferences",
                     R"([{"apiVersion":"meshtrain.dev/v1","kind":"TrainingJob","name":"mnist",
                          "uid":"uid-1","controller":true,"blockOwnerDeletion":true}])"_json}}},
                  {"spec",
                   {{"podSelector", own},
                    {"policyTypes", {"Ingress"}},
                    {"ingress",
                     {{{"from", Json::array({{{"podSelector", own}}})}},
                      {{"from", Json::parse(kPeers)},
                       {"ports", R"([{"protocol":"TCP","port":"meshtrain-http"}])"_json}}}}}}}));
}

TEST(NetworkPolicyTest, WithoutPeersNobodyElseIsLetIn) {
  const Json body =
      Json::parse(JobNetworkPolicy(MakeJob("mnist").Workers(2).Build(), With("[]")).body);
  EXPECT_EQ(body["spec"]["ingress"].size(), 1u) << "a rule with no peers would be for everybody";
}

TEST(NetworkPolicyTest, ItIsThereBeforeThePodsAndOnlyWhereItIsAskedFor) {
  Scene scene(MakeJob("mnist").Workers(2));
  scene.seen.settings.http_peers = kPeers;
  const std::string did = scene.Look(0);
  EXPECT_THAT(did, HasSubstr("create network policy mnist-network-"));
  EXPECT_LT(did.find("create network policy"), did.find("create pod"));
  scene.Obey();
  scene.Look(2);
  EXPECT_THAT(scene.Look(10), Not(HasSubstr("network policy")));
  EXPECT_THAT(Scene(MakeJob("mnist").Workers(2)).Look(0), Not(HasSubstr("network policy")));
}

TEST(NetworkPolicyTest, APeerThatWouldBeEverybodyIsRefused) {
  EXPECT_EQ(CheckHttpPeers(kPeers), OkStatus());
  EXPECT_EQ(CheckHttpPeers("[]"), OkStatus());
  EXPECT_EQ(CheckHttpPeers(R"([{"ipBlock":{"cidr":"10.0.0.0/8"}}])"), OkStatus());
  for (const char* peers : {"", "{}", "[{}]", "[1]", R"([{"podSelectors":{}}])", "[", "null"}) {
    const Status status = CheckHttpPeers(peers);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << peers;
    EXPECT_THAT(status.message(), HasSubstr("expected "));
  }
}

TEST(NetworkPolicyTest, APeerThatWouldBeAnotherInEachNamespaceIsRefused) {
  EXPECT_EQ(CheckHttpPeers(R"([{"podSelector":{},"namespaceSelector":{}}])"), OkStatus());
  for (const char* peers :
       {R"([{"podSelector":{"matchLabels":{"app":"prometheus"}}}])",
        R"([{"namespaceSelector":{}},{"podSelector":{},"namespaceSelector":null}])"}) {
    const Status status = CheckHttpPeers(peers);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << peers;
    EXPECT_THAT(status.message(), HasSubstr("expected a namespaceSelector beside the podSelector"));
  }
}

}  // namespace
}  // namespace meshtrain::reconcile
