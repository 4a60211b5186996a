#include "operator/local/pod.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/reconcile/children.h"
#include "runtime/cluster/tf_config.h"
#include "tests/support/job_builder.h"

namespace meshtrain::local {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(ExpandTest, AsKubernetesDoes) {
  // The table of k8s.io/kubernetes/third_party/forked/golang/expansion/expand_test.go, in short.
  const std::map<std::string, std::string> variables = {
      {"A", "a"}, {"B", "b"}, {"EMPTY", ""}, {"D", "$(A)"}};
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"$(A)", "a"},
      {"--x=$(A),$(B)", "--x=a,b"},
      {"[$(EMPTY)]", "[]"},
      {"$(D)", "$(A)"},  // once, not again
      {"$(MISSING)", "$(MISSING)"},
      {"$$(A)", "$(A)"},
      {"$$$(A)", "$a"},
      {"$$$$(A)", "$$(A)"},
      {"$A ${A} $", "$A ${A} $"},
      {"$(A", "$(A"},
      {"$()", "$()"},
      {"a$(A)a", "aaa"},
      {"$(A)$(A", "a$(A"},
      {"$(A))", "a)"},
  };
  for (const auto& [text, want] : cases) EXPECT_EQ(Expand(text, variables), want) << text;
}

TEST(ExpandTest, AVariableMayUseThoseBeforeIt) {
  const auto out =
      Expand({{"A", "1"}, {"B", "$(A)2"}, {"C", "$(LATER)"}, {"LATER", "x"}, {"A", "3"}});
  EXPECT_THAT(
      out, ElementsAre(Pair("A", "3"), Pair("B", "12"), Pair("C", "$(LATER)"), Pair("LATER", "x")));
}

TEST(WithHostsTest, ReplacesWholeStringsOnly) {
  const std::map<std::string, std::string> hosts = {{"a:1", "127.0.0.1:10001"},
                                                    {"b:1", "127.0.0.1:10002"}};
  EXPECT_EQ(
      WithHosts(R"({"worker":["a:1","b:1","aa:1"],"x":"a:1 b:1","e":"\"a:1","n":1})", hosts),
      R"({"worker":["127.0.0.1:10001","127.0.0.1:10002","aa:1"],"x":"a:1 b:1","e":"\"a:1","n":1})");
  for (const char* torn : {"", "{", "\"", "\"a:1", "\"a:1\\", "\"a:1\\\""}) {
    EXPECT_EQ(WithHosts(torn, hosts), torn);
  }
}

TEST(WithHostsTest, KeepsEverySpellingOfTfConfig) {
  const auto local = [](const std::string& text) {
    return WithHosts(text, {{"mnist-worker-1.mnist.ml.svc:2222", "127.0.0.1:10001"},
                            {"mnist-ps-0.mnist.ml.svc:2222", "127.0.0.1:10002"}});
  };
  // Sparse, as ours and as TFJob wrote it: roles, gaps and order stay.
  EXPECT_EQ(local(R"({"cluster":{"ps":["mnist-ps-0.mnist.ml.svc:2222"],)"
                  R"("worker":{"1":"mnist-worker-1.mnist.ml.svc:2222"}},)"
                  R"("task":{"type":"worker","index":1},"environment":"cloud"})"),
            R"({"cluster":{"ps":["127.0.0.1:10002"],"worker":{"1":"127.0.0.1:10001"}},)"
            R"("task":{"type":"worker","index":1},"environment":"cloud"})");
  EXPECT_EQ(
      local(
          R"({"cluster":{"worker":{},"ps":["mnist-ps-0.mnist.ml.svc:2222"]},"task":{"type":"ps","index":0}})"),
      R"({"cluster":{"worker":{},"ps":["127.0.0.1:10002"]},"task":{"type":"ps","index":0}})");
}

class ReadPodTest : public ::testing::Test {
 protected:
  static Result<Container> Read(const std::string& spec,
                                std::string_view policy = api::kRestartExitCode) {
    const api::TrainingJob job = testing_support::MakeJob("mnist")
                                     .Workers(2, policy)
                                     .Template(cluster::Role::kWorker, spec)
                                     .Build();
    return ReadPod(reconcile::PodBody(
        job, {}, {.name = "mnist-worker-1", .task = {cluster::Role::kWorker, 1}, .attempt = 4}));
  }
  static std::string Value(const Container& container, std::string_view name) {
    for (const auto& [variable, value] : container.environment) {
      if (variable == name) return value;
    }
    return "(none)";
  }
};

TEST_F(ReadPodTest, ReadsTheTrainingContainer) {
  const auto pod = Read(R"({"spec":{"terminationGracePeriodSeconds":7,"containers":[
      {"name":"sidecar","image":"s"},
      {"name":"trainer","image":"t","command":["sh","-c"],"args":["exit 3"],"workingDir":"/tmp",
       "ports":[{"name":"meshtrain-http","containerPort":8080}],
       "env":[{"name":"N","value":"1"},{"name":"UNQUOTED","value":5},
              {"name":"POD","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}},
              {"name":"ROLE","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['meshtrain.dev/replica-type']"}}},
              {"name":"IP","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}},
              {"name":"MAYBE","valueFrom":{"secretKeyRef":{"name":"s","key":"k","optional":true}}}]}]}})");
  ASSERT_TRUE(pod.ok()) << pod.status().message();
  EXPECT_EQ(pod->name, "trainer");
  EXPECT_THAT(pod->command, ElementsAre("sh", "-c"));
  EXPECT_THAT(pod->args, ElementsAre("exit 3"));
  EXPECT_EQ(pod->working_directory, "/tmp");
  EXPECT_EQ(pod->http_port, 8080);
  EXPECT_EQ(pod->grace, std::chrono::seconds(7));
  EXPECT_EQ(pod->restart_policy, "Never") << "ExitCode is the operator's";
  EXPECT_EQ(Value(*pod, "N"), "1");
  EXPECT_EQ(Value(*pod, "UNQUOTED"), "5");
  EXPECT_EQ(Value(*pod, "POD"), "mnist-worker-1");
  EXPECT_EQ(Value(*pod, "ROLE"), "worker");
  EXPECT_EQ(Value(*pod, "IP"), "127.0.0.1");
  EXPECT_EQ(Value(*pod, "MAYBE"), "(none)");
  EXPECT_EQ(Value(*pod, "MESHTRAIN_ATTEMPT"), "4");
  EXPECT_TRUE(cluster::ParseTfConfig(Value(*pod, "TF_CONFIG")).ok());
  EXPECT_THAT(pod->left_out, ElementsAre("container sidecar"));
}

TEST_F(ReadPodTest, NamesWhatGoesMissing) {
  const auto pod = Read(R"({"spec":{"initContainers":[{"name":"fetch","image":"f"}],"containers":[
      {"name":"trainer","image":"t","volumeMounts":[{"name":"data","mountPath":"/data"}]}]}})",
                        api::kRestartOnFailure);
  ASSERT_TRUE(pod.ok());
  EXPECT_EQ(pod->restart_policy, "OnFailure");
  EXPECT_EQ(pod->grace, std::chrono::seconds(30));
  EXPECT_THAT(pod->left_out, ElementsAre("spec.initContainers", "volume data at /data"));
  // Memory as /dev/shm, which a process of this machine has.
  const auto tpus = Read(R"({"spec":{"containers":[
      {"name":"trainer","image":"t","resources":{"limits":{"google.com/tpu":8}}}]}})",
                         api::kRestartOnFailure);
  ASSERT_TRUE(tpus.ok());
  EXPECT_THAT(tpus->left_out, ElementsAre());
  const auto patient = Read(R"({"spec":{"terminationGracePeriodSeconds":9999999999,"containers":[
      {"name":"trainer","image":"t"}]}})",
                            api::kRestartOnFailure);
  ASSERT_TRUE(patient.ok());
  EXPECT_EQ(patient->grace, std::chrono::seconds(INT32_MAX));
}

TEST_F(ReadPodTest, WordsAreTexts) {
  const auto read = [](const std::string& more) {
    return Read(R"({"spec":{"containers":[{"name":"trainer","image":"t",)" + more + "}]}}");
  };
  EXPECT_THAT(read(R"("command":["sleep",5,true],"args":null)")->command,
              ElementsAre("sleep", "5", "true"));
  EXPECT_EQ(read(R"("command":"echo")").status().message(),
            "command: expected a list of texts, got: \"echo\"");
  EXPECT_EQ(read(R"("command":["sh"],"args":["a",{"b":1}])").status().message(),
            R"(args[1]: expected a text, got: {"b":1})");
}

TEST_F(ReadPodTest, RefusesWhatOnlyAClusterCouldFillIn) {
  const auto secret = Read(R"({"spec":{"containers":[{"name":"trainer","image":"t",
      "env":[{"name":"KEY","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}]}]}})");
  EXPECT_EQ(secret.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(secret.status().message(), HasSubstr("env KEY: expected a value"));
  const auto all = Read(
      R"({"spec":{"containers":[{"name":"trainer","image":"t","envFrom":[{"configMapRef":{"name":"c"}}]}]}})");
  EXPECT_THAT(all.status().message(), HasSubstr("envFrom"));
  const auto field = Read(R"({"spec":{"containers":[{"name":"trainer","image":"t",
      "env":[{"name":"CPU","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu"}}}]}]}})");
  EXPECT_EQ(field.status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace meshtrain::local
