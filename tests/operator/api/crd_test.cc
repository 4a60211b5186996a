#include "operator/api/crd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/api/rules.h"

namespace meshtrain::api {
namespace {

using Json = nlohmann::json;

const Json& Root() {
  static const Json kRoot = Json::parse(CrdJson());
  return kRoot;
}
const Json& Schema() { return Root()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]; }

void Walk(const Json& schema, const std::string& path,
          const std::function<void(const Json&, const std::string&)>& visit) {
  visit(schema, path);
  if (schema.contains("properties")) {
    for (const auto& [name, inner] : schema["properties"].items()) {
      Walk(inner, path + "." + name, visit);
    }
  }
  if (schema.contains("additionalProperties")) {
    Walk(schema["additionalProperties"], path + ".*", visit);
  }
  if (schema.contains("items")) Walk(schema["items"], path + "[]", visit);
}

TEST(CrdTest, EveryFieldIsDescribed) {
  int fields = 0;
  Walk(Schema(), "", [&](const Json& schema, const std::string& path) {
    if (path == ".metadata") return;
    ++fields;
    EXPECT_TRUE(schema.contains("description") &&
                schema["description"].get<std::string>().size() > 3)
        << path;
    EXPECT_TRUE(schema.contains("type") || schema.contains("x-kubernetes-int-or-string") ||
                schema.contains("x-kubernetes-preserve-unknown-fields"))
        << path;
  });
  EXPECT_GT(fields, 120);
}

TEST(CrdTest, EveryRuleWithCelStandsInTheSchema) {
  size_t want = 0;
  for (const Rule& rule : Rules()) want += rule.cel.empty() ? 0 : 1;
  size_t found = 0;
  Walk(Schema(), "", [&](const Json& schema, const std::string&) {
    if (schema.contains("x-kubernetes-validations")) {
      found += schema["x-kubernetes-validations"].size();
    }
  });
  EXPECT_EQ(found, want);
}

TEST(CrdTest, KeepsTemplatesAndProgramsWhole) {
  const Json& spec = Schema()["properties"]["spec"]["properties"];
  const Json& pod = spec["replicaSpecs"]["additionalProperties"]["properties"]["template"];
  EXPECT_EQ(pod["x-kubernetes-preserve-unknown-fields"], true);
  EXPECT_EQ(pod["properties"]["spec"]["properties"]["containers"]["items"]
               ["x-kubernetes-preserve-unknown-fields"],
            true);
  EXPECT_EQ(spec["program"]["x-kubernetes-preserve-unknown-fields"], true);
}

TEST(CrdTest, HasColumnsSubresourcesAndShortNames) {
  const Json& version = Root()["spec"]["versions"][0];
  std::string names;
  for (const Json& column : version["additionalPrinterColumns"]) {
    if (!column.contains("priority")) names += column["name"].get<std::string>() + " ";
  }
  EXPECT_EQ(names, "PHASE READY STEP PROGRESS LOSS ACCURACY RESTARTS AGE ");
  EXPECT_TRUE(version["subresources"].contains("status"));
  EXPECT_EQ(version["subresources"]["scale"]["specReplicasPath"],
            ".spec.replicaSpecs.worker.replicas");
  EXPECT_EQ(Root()["spec"]["names"]["shortNames"][0], "tj");
}

TEST(CrdTest, YamlSaysTheSameAsJson) {
  const auto json = YamlToJson(CrdYaml());
  ASSERT_TRUE(json.ok()) << json.status().ToString();
  EXPECT_EQ(Json::parse(*json), Root());
}

TEST(CrdTest, FitsAnAnnotation) {
  EXPECT_LT(CrdJson().size(), 262144u) << "kubectl apply keeps a copy of it";
}

TEST(CrdTest, OneThatLacksFieldsIsTold) {
  const auto missing = [](const Json& crd) { return MissingInCrd(crd.dump()).value(); };
  const Json ours = Json::parse(CrdJson());
  EXPECT_THAT(missing(ours), ::testing::IsEmpty());
  Json other = ours;
  const Json::json_pointer fields("/spec/versions/0/schema/openAPIV3Schema/properties");
  other[fields]["status"]["properties"].erase("security");
  other[fields]["spec"]["properties"]["claims"]["items"]["properties"].erase("subPath");
  other[fields]["status"]["properties"]["replicaStatuses"]["additionalProperties"]["properties"]
      .erase("failed");
  EXPECT_THAT(missing(other),
              ::testing::UnorderedElementsAre("status.security", "spec.claims[].subPath",
                                              "status.replicaStatuses.*.failed"));
  // A newer one has more.
  other = ours;
  other[fields]["spec"]["properties"]["tomorrow"] = {{"type", "string"}};
  EXPECT_THAT(missing(other), ::testing::IsEmpty());
  other[fields]["spec"] = {{"type", "object"}, {"x-kubernetes-preserve-unknown-fields", true}};
  EXPECT_THAT(missing(other), ::testing::IsEmpty());
  EXPECT_FALSE(MissingInCrd("{}").ok());
  EXPECT_FALSE(MissingInCrd("no JSON").ok());
}

}  // namespace
}  // namespace meshtrain::api
