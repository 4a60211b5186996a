// Bodies of the objects that a job wants.
#include "operator/reconcile/children.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using cluster::Role;
using cluster::TaskId;
using Json = nlohmann::json;

Json Pod(const api::TrainingJob& job, TaskId task, const Settings& settings = {}, int attempt = 0) {
  return Json::parse(PodBody(
      job, settings,
      {.name = cluster::PodName(job.metadata.name, task), .task = task, .attempt = attempt}));
}
// The value of a variable of the first container that has it; "" where none has.
std::string Env(const Json& pod, const std::string& name, size_t container = 0) {
  const Json& env = pod["spec"]["containers"][container].value("env", Json::array());
  for (const Json& variable : env) {
    if (variable["name"] == name) return variable.value("value", "");
  }
  return "";
}

TEST(ChildrenTest, PodCarriesNameLabelsOwnerAndConfig) {
  const auto job = MakeJob("mnist").Chief().Workers(1).Build();
  EXPECT_EQ(Pod(job, kWorker0, {}, 2), Json::parse(R"({
    "apiVersion": "v1", "kind": "Pod",
    "metadata": {
      "name": "mnist-worker-0", "namespace": "ml",
      "annotations": {"meshtrain.dev/attempt": "2", "meshtrain.dev/cluster": ")" +
                                                   ClusterStamp(job, {}) + R"(",
                      "meshtrain.dev/job-uid": "uid-1",
                      "kubectl.kubernetes.io/default-container": "trainer"},
      "labels": {"app.kubernetes.io/managed-by": "meshtrain-operator", "meshtrain.dev/job-name": "mnist",
                 "meshtrain.dev/replica-index": "0", "meshtrain.dev/replica-type": "worker"},
      "ownerReferences": [{"apiVersion": "meshtrain.dev/v1", "kind": "TrainingJob", "name": "mnist", "uid": "uid-1",
                           "controller": true, "blockOwnerDeletion": true}]},
    "spec": {
      "restartPolicy": "Never", "hostname": "mnist-worker-0", "subdomain": "mnist", "enableServiceLinks": false,
      "containers": [{"name": "trainer", "image": "train:1", "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": [{"name": "tfjob-port", "containerPort": 2222}],
        "env": [
          {"name": "TF_CONFIG", "value": "{\"cluster\":{\"chief\":[\"mnist-chief-0.mnist.ml.svc:2222\"],\"worker\":[\"mnist-worker-0.mnist.ml.svc:2222\"]},\"task\":{\"type\":\"worker\",\"index\":0},\"environment\":\"cloud\"}"},
          {"name": "MESHTRAIN_JOB", "value": "ml/mnist"}, {"name": "MESHTRAIN_ROLE", "value": "worker"},
          {"name": "MESHTRAIN_INDEX", "value": "0"}, {"name": "MESHTRAIN_ATTEMPT", "value": "2"}]}]}})"));
  EXPECT_EQ(Pod(job, kChief)["metadata"]["labels"]["meshtrain.dev/leader"], "true");
}

TEST(ChildrenTest, OnlyTheTrainingContainerIsTouched) {
  const auto job = MakeJob("mnist")
                       .Chief()
                       .Workers(1)
                       .Template(Role::kWorker, R"({"metadata":{"labels":{"a":"b"},
    "annotations":{"c":"d"}},"spec":{"restartPolicy":"Always","enableServiceLinks":true,"nodeSelector":{"pool":"gpu"},
    "containers":[{"name":"log","image":"l"},{"name":"tensorflow","image":"t","env":[{"name":"A","value":"B"}],
    "ports":[{"name":"tfjob-port","containerPort":9000}]}]}})")
                       .Build();
  const Json pod = Pod(job, kWorker0);
  EXPECT_EQ(pod["spec"]["containers"][0], Json::parse(R"({"name":"log","image":"l"})"));
  EXPECT_EQ(Env(pod, "A", 1), "B");
  EXPECT_THAT(Env(pod, "TF_CONFIG", 1), ::testing::HasSubstr("mnist-worker-0.mnist.ml.svc:9000"));
  EXPECT_EQ(pod["spec"]["containers"][1]["ports"].size(), 1u);
  EXPECT_EQ(pod["metadata"]["labels"]["a"], "b");
  EXPECT_EQ(pod["metadata"]["annotations"]["c"], "d");
  EXPECT_EQ(pod["spec"]["nodeSelector"]["pool"], "gpu");
  EXPECT_EQ(pod["spec"]["enableServiceLinks"], true) << "the user's wish";
  EXPECT_EQ(pod["spec"]["restartPolicy"], "Never") << "ExitCode, of the replica spec";
  EXPECT_EQ(pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"],
            "tensorflow");
  EXPECT_EQ(pod["spec"]["containers"][1]["terminationMessagePolicy"], "FallbackToLogsOnError");
}

TEST(ChildrenTest, TfConfigByRole) {
  Settings settings;
  settings.cluster_domain = "cluster.local";
  EXPECT_EQ(TfConfigFor(MakeJob("a").Workers(1).Build(), kWorker0, settings), "")
      << "a lone process";
  const auto own =
      MakeJob("a")
          .Workers(2)
          .Template(
              Role::kWorker,
              R"({"spec":{"containers":[{"name":"t","env":[{"name":"TF_CONFIG","value":"mine"}]}]}})")
          .Build();
  EXPECT_EQ(TfConfigFor(own, kWorker0, settings), "");
  EXPECT_EQ(Env(Pod(own, kWorker0), "TF_CONFIG"), "mine");
  const auto job = MakeJob("a").Chief().Workers(1).Evaluator().Build();
  EXPECT_EQ(
      TfConfigFor(job, kChief, settings),
      R"({"cluster":{"chief":["a-chief-0.a.ml.svc.cluster.local:2222"],)"
      R"("worker":["a-worker-0.a.ml.svc.cluster.local:2222"]},"task":{"type":"chief","index":0},)"
      R"("environment":"cloud"})");
  EXPECT_THAT(TfConfigFor(job, {Role::kEvaluator, 0}, settings),
              ::testing::HasSubstr(R"("evaluator":["a-evaluator-0)"));
}

TEST(ChildrenTest, ElasticWorkersBesideServersGetTheSparseForm) {
  const auto builder = MakeJob("a").Chief().Workers(3).Ps(2).With([](api::TrainingJob& job) {
    job.spec.elastic = api::Elastic{1, 5};
  });
  EXPECT_EQ(
      TfConfigFor(builder.Build(), kWorker1, {}),
      R"({"cluster":{"ps":["a-ps-0.a.ml.svc:2222","a-ps-1.a.ml.svc:2222"],"worker":{"1":"a-worker-1.a.ml.svc:2222"}},)"
      R"("task":{"type":"worker","index":1},"environment":"cloud"})");
  EXPECT_THAT(TfConfigFor(builder.Build(), kChief, {}),
              ::testing::HasSubstr("a-worker-2.a.ml.svc:2222"));
  const auto dense = MakeJob("a").Chief().Workers(3).With([](api::TrainingJob& job) {
    job.spec.elastic = api::Elastic{1, 5};
  });
  EXPECT_THAT(TfConfigFor(dense.Build(), kWorker1, {}),
              ::testing::HasSubstr("a-worker-2.a.ml.svc:2222"))
      << "no ps";
}

TEST(ChildrenTest, KubeflowCompatibilityHasAServicePerReplicaAndItsStrings) {
  const auto job = MakeJob("a")
                       .Chief()
                       .Workers(1)
                       .Evaluator()
                       .With([](api::TrainingJob& j) { j.spec.tf_config_compat = "kubeflow-v1"; })
                       .Build();
  EXPECT_EQ(
      TfConfigFor(job, kWorker0, {}),
      R"({"cluster":{"chief":["a-chief-0.ml.svc:2222"],"evaluator":["a-evaluator-0.ml.svc:2222"],)"
      R"("worker":["a-worker-0.ml.svc:2222"]},"task":{"type":"worker","index":0},"environment":"cloud"})");
  std::vector<std::string> names;
  for (const CreateService& service : WantedServices(job)) names.push_back(service.name);
  EXPECT_THAT(names, ::testing::ElementsAre("a", "a-chief-0", "a-worker-0", "a-evaluator-0"));
  // Tools for TFJob find its pods by their labels.
  const Json labels = Pod(job, kChief)["metadata"]["labels"];
  EXPECT_EQ(labels["training.kubeflow.org/job-name"], "a");
  EXPECT_EQ(labels["training.kubeflow.org/replica-type"], "chief");
  EXPECT_EQ(labels["training.kubeflow.org/replica-index"], "0");
  EXPECT_EQ(labels["training.kubeflow.org/job-role"], "master");
  EXPECT_FALSE(Pod(job, kWorker0)["metadata"]["labels"].contains("training.kubeflow.org/job-role"));
  const Json plain = Pod(MakeJob("a").Chief().Build(), kChief)["metadata"]["labels"];
  EXPECT_FALSE(plain.contains("training.kubeflow.org/job-name")) << "without the compatibility";
}

TEST(ChildrenTest, ServiceIsHeadlessAndPublishesEarly) {
  const auto job = MakeJob("mnist").Workers(1).Build();
  const Json service = Json::parse(WantedServices(job).at(0).body);
  EXPECT_EQ(service["spec"], Json::parse(R"({"clusterIP":"None","publishNotReadyAddresses":true,
    "selector":{"app.kubernetes.io/managed-by":"meshtrain-operator","meshtrain.dev/job-name":"mnist"},
    "ports":[{"name":"tfjob-port","port":2222}]})"));
}

TEST(ChildrenTest, AClusterTooLargeForAVariableGoesIntoAFile) {
  const auto job = MakeJob("mnist").Workers(4000).Build();
  ASSERT_TRUE(NeedsClusterFile(job, {}));
  EXPECT_FALSE(NeedsClusterFile(MakeJob("mnist").Workers(2000).Build(), {}));
  EXPECT_EQ(TfConfigFor(job, kWorker0, {}), "");
  const CreateConfigMap map = ClusterMap(job, {});
  const Json pod = Pod(job, kWorker2);
  EXPECT_EQ(Env(pod, "TF_CONFIG"), "");
  EXPECT_EQ(Env(pod, "MESHTRAIN_CLUSTER_FILE"), "/etc/meshtrain/cluster/cluster.json");
  EXPECT_EQ(Env(pod, "MESHTRAIN_INDEX"), "2");
  EXPECT_EQ(pod["spec"]["volumes"][0]["configMap"]["name"], map.name);
  const auto read =
      cluster::ParseClusterFile(Json::parse(map.body)["data"]["cluster.json"].get<std::string>());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, JobCluster(job, {}));
  EXPECT_NE(ClusterMap(MakeJob("mnist").Workers(4001).Build(), {}).name, map.name);
}

TEST(ChildrenTest, AProgramNeedsNoTemplate) {
  auto builder =
      MakeJob("mnist")
          .Workers(2)
          .Program(testing_support::ProgramOnMesh(2))
          .With([](api::TrainingJob& job) {
            job.spec.replica_specs[Role::kWorker].pod_template = {};
            job.spec.strategy = "Mesh";
            job.spec.program_has_mesh = true;
            job.spec.run_policy.peer_return_seconds = 7;
            job.spec.checkpoint = api::Checkpoint{
                .path = "/ckpt", .volume_claim_template = R"({"spec":{"x":1}})", .every_steps = 5};
          });
  const Json pod = Pod(builder.Build(), kWorker1);
  const Json& container = pod["spec"]["containers"][0];
  EXPECT_EQ(container["image"], "meshtrain-worker:latest");
  EXPECT_EQ(Env(pod, "MESHTRAIN_PROGRAM"), testing_support::ProgramOnMesh(2));
  EXPECT_EQ(Env(pod, "MESHTRAIN_STRATEGY"), "Mesh");
  EXPECT_EQ(Env(pod, "MESHTRAIN_PEER_RETURN_SECONDS"), "7");
  EXPECT_EQ(Env(pod, "MESHTRAIN_CHECKPOINT"),
            R"({"everySteps":5,"path":"/ckpt","resume":"Latest"})");
  EXPECT_EQ(Env(pod, "MESHTRAIN_TOKEN_FILE"), "/etc/meshtrain/token/token");
  EXPECT_EQ(container["ports"][1]["name"], "meshtrain-http");
  Scene scene(builder);
  EXPECT_THAT(scene.Look(0),
              ::testing::MatchesRegex("create service mnist\ncreate secret mnist-token-[0-9a-f]+\n"
                                      "create claim mnist-checkpoint-[0-9a-f]+\n"
                                      "create pod(.|\n)*"))
      << ToString(scene.last);
  const Json claim = Json::parse(CheckpointClaim(builder.Build()).body);
  EXPECT_EQ(claim["spec"]["x"], 1);
}

JobBuilder Declared(int workers) {
  return MakeJob("mnist")
      .Workers(workers)
      .Program(testing_support::kProgram)
      .With([](api::TrainingJob& job) { job.spec.replica_specs[Role::kWorker].pod_template = {}; });
}

// By name of the volume: PATH, then what else the mount says.
std::map<std::string, std::string> Mounts(const Json& pod) {
  std::map<std::string, std::string> out;
  for (const Json& mount : pod["spec"]["containers"][0]["volumeMounts"]) {
    std::string& text = out[mount["name"]];
    text = mount["mountPath"].get<std::string>();
    if (mount.value("readOnly", false)) text += " ro";
    if (mount.contains("subPath")) text += " " + mount["subPath"].get<std::string>();
  }
  return out;
}

TEST(ChildrenTest, PodsOfAProgramAreThoseOfAStrictCluster) {
  const Json pod = Pod(Declared(1).Build(), kWorker0);
  EXPECT_EQ(pod["spec"]["securityContext"], Json::parse(R"({"runAsNonRoot":true,"fsGroup":65532,
    "fsGroupChangePolicy":"OnRootMismatch","seccompProfile":{"type":"RuntimeDefault"}})"));
  const Json& container = pod["spec"]["containers"][0];
  EXPECT_EQ(container["securityContext"], Json::parse(R"({"allowPrivilegeEscalation":false,
    "readOnlyRootFilesystem":true,"capabilities":{"drop":["ALL"]}})"));
  EXPECT_EQ(pod["spec"]["automountServiceAccountToken"], false);
  EXPECT_EQ(container["workingDir"], "/work");
  EXPECT_THAT(Mounts(pod),
              ::testing::ElementsAre(::testing::Pair("meshtrain-tmp", "/tmp"),
                                     ::testing::Pair("meshtrain-token", "/etc/meshtrain/token ro"),
                                     ::testing::Pair("meshtrain-work", "/work")));
  EXPECT_EQ(pod["spec"]["volumes"][0]["secret"]["defaultMode"], 0440);
  // Where the cluster gives a group itself, the token is for it too, but we cannot know that.
  Settings open_shift;
  open_shift.fs_group.reset();
  const Json given = Pod(Declared(1).Build(), kWorker0, open_shift);
  EXPECT_FALSE(given["spec"]["securityContext"].contains("fsGroup"));
  EXPECT_EQ(given["spec"]["volumes"][0]["secret"]["defaultMode"], 0444);
}

TEST(ChildrenTest, ASealedJobsPodsMountItsCertificates) {
  Settings sealing;
  sealing.seals = true;
  const api::TrainingJob job = Declared(2).Build();
  const Json pod = Pod(job, kWorker1, sealing);
  EXPECT_EQ(Env(pod, "MESHTRAIN_TLS_CA"), "/etc/meshtrain/tls/ca.crt");
  EXPECT_EQ(Env(pod, "MESHTRAIN_TLS_CERT"), "/etc/meshtrain/tls/tls.crt");
  EXPECT_EQ(Env(pod, "MESHTRAIN_TLS_KEY"), "/etc/meshtrain/tls/tls.key");
  EXPECT_EQ(Mounts(pod)["meshtrain-tls"], "/etc/meshtrain/tls ro");
  const CreateSecret secret = TlsSecret(job, sealing);
  EXPECT_THAT(secret.name, ::testing::MatchesRegex("mnist-tls-[0-9a-f]{8}"));
  EXPECT_EQ(secret.hosts, std::vector<std::string>{"*.mnist.ml.svc"});
  const Json body = Json::parse(secret.body);
  EXPECT_EQ(body["type"], "kubernetes.io/tls");
  EXPECT_EQ(body["immutable"], true);
  EXPECT_EQ(body["metadata"]["ownerReferences"][0]["uid"], job.metadata.uid);
  for (const Json& volume : pod["spec"]["volumes"]) {
    if (volume["name"] != "meshtrain-tls") continue;
    EXPECT_EQ(volume["secret"]["secretName"], secret.name);
    EXPECT_EQ(volume["secret"]["defaultMode"], 0440);
  }
  // Hosts of their own Services, and a cluster with a domain.
  Settings domain = sealing;
  domain.cluster_domain = "cluster.local";
  EXPECT_EQ(TlsSecret(job, domain).hosts, std::vector<std::string>{"*.mnist.ml.svc.cluster.local"});
  const api::TrainingJob legacy =
      Declared(2)
          .With([](api::TrainingJob& j) { j.spec.tf_config_compat = api::kCompatKubeflowV1; })
          .Build();
  EXPECT_EQ(TlsSecret(legacy, sealing).hosts, std::vector<std::string>{"*.ml.svc"});
}

TEST(ChildrenTest, WhatIsSealedIsDecidedWhereTheJobBegins) {
  Settings sealing;
  sealing.seals = true;
  const auto with = [](const std::string& security) {
    return Declared(2).With([&](api::TrainingJob& job) { job.spec.security = security; }).Build();
  };
  EXPECT_TRUE(Sealed(with(""), sealing));
  EXPECT_FALSE(Sealed(with(""), {})) << "as with `meshtrain run`";
  EXPECT_TRUE(Sealed(with("mutualTLS"), {}));
  EXPECT_FALSE(Sealed(with("none"), sealing));
  EXPECT_FALSE(Sealed(Declared(1).Build(), sealing)) << "nobody to speak to";
  EXPECT_FALSE(Sealed(MakeJob("tf").Workers(2).Build(), sealing)) << "not our program";
  EXPECT_NE(ClusterStamp(with(""), sealing), ClusterStamp(with("none"), sealing));

  // One that began under an operator that sealed nothing stays as it is.
  api::TrainingJob begun = with("");
  begun.status.start_time = testing_support::At(0);
  EXPECT_FALSE(Sealed(begun, sealing));
  EXPECT_EQ(ClusterStamp(begun, sealing), ClusterStamp(with("none"), sealing));
  // And one that began sealed stays so under an operator that would not.
  Scene scene(Declared(2));
  scene.seen.settings.seals = true;
  EXPECT_THAT(scene.Look(0), ::testing::HasSubstr("create secret mnist-tls-"));
  EXPECT_EQ(scene.status().security, "mutualTLS");
  scene.Obey();
  scene.seen.settings.seals = false;
  EXPECT_TRUE(Sealed(scene.job, scene.seen.settings));
  scene.Look(2);
  scene.Pod(EndedPod(scene.job, kWorker1, 138));
  scene.Look(10);
  scene.Obey();
  const std::string did = scene.Look(11);
  EXPECT_THAT(did, ::testing::HasSubstr("probe secret mnist-tls-")) << "worker-0 holds it";
  EXPECT_THAT(did, ::testing::Not(::testing::HasSubstr("create secret")));
}

TEST(ChildrenTest, AJobThatBeginsAloneIsSealedOnceItIsScaled) {
  Scene scene(Declared(1));
  scene.seen.settings.seals = true;
  EXPECT_THAT(scene.Look(0), ::testing::Not(::testing::HasSubstr("secret mnist-tls-")));
  EXPECT_EQ(scene.status().security, "mutualTLS");
  scene.Obey();
  scene.job.spec.replica_specs.at(Role::kWorker).replicas = 2;
  EXPECT_TRUE(Sealed(scene.job, scene.seen.settings));
  std::string did;  // the pod that is there goes first
  for (const int at : {2, 3, 4}) {
    did += scene.Look(at);
    scene.Obey();
  }
  EXPECT_THAT(did, ::testing::HasSubstr("create secret mnist-tls-"));
}

TEST(ChildrenTest, TheTemplateWinsOverWhatAStrictClusterAsksFor) {
  const auto with = [](const std::string& spec) {
    return Pod(Declared(1).Template(Role::kWorker, R"({"spec":)" + spec + "}").Build(),
               kWorker0)["spec"];
  };
  const Json root = with(R"({"securityContext":{"runAsUser":0,"fsGroup":7},
    "serviceAccountName":"reader","containers":[{"name":"trainer","securityContext":
    {"readOnlyRootFilesystem":false,"capabilities":{"add":["SYS_ADMIN"],"drop":[]}},
    "volumeMounts":[{"name":"big","mountPath":"/tmp"}]}]})");
  EXPECT_EQ(root["securityContext"], Json::parse(R"({"runAsUser":0,"fsGroup":7,
    "seccompProfile":{"type":"RuntimeDefault"}})"));
  EXPECT_EQ(root["containers"][0]["securityContext"], Json::parse(R"({
    "readOnlyRootFilesystem":false,"capabilities":{"add":["SYS_ADMIN"],"drop":[]}})"));
  EXPECT_FALSE(root.contains("automountServiceAccountToken"));
  EXPECT_EQ(Mounts({{"spec", root}}).count("meshtrain-tmp"), 0u);
  EXPECT_EQ(with(R"({"containers":[{"name":"trainer","securityContext":{"runAsNonRoot":false}}]})")
                ["securityContext"]
                    .count("runAsNonRoot"),
            0u);
  // Of another image nobody but its owner knows what it needs.
  const Json own = with(R"({"containers":[{"name":"trainer","image":"mine"}]})");
  EXPECT_FALSE(own.contains("securityContext"));
  EXPECT_FALSE(own["containers"][0].contains("securityContext"));
  EXPECT_FALSE(own["containers"][0].contains("workingDir"));
  EXPECT_EQ(Mounts({{"spec", own}}).size(), 1u) << "the token";
  EXPECT_EQ(own["volumes"][0]["secret"]["defaultMode"], 0444) << "whoever the image runs as";
}

TEST(ChildrenTest, ClaimsAreMountedAndTheOutputOutlivesThePod) {
  auto builder = Declared(2).With([](api::TrainingJob& job) {
    job.spec.claims = {{.name = "digits", .path = "data"},
                       {.name = "big", .path = "/mnt/a", .sub_path = "x/y", .read_only = false}};
    job.spec.output = api::Output{.claim = "runs"};
  });
  Json pod = Pod(builder.Build(), kWorker1);
  EXPECT_THAT(Mounts(pod),
              ::testing::IsSupersetOf({::testing::Pair("meshtrain-claim-0", "/work/data ro"),
                                       ::testing::Pair("meshtrain-claim-1", "/mnt/a x/y"),
                                       ::testing::Pair("meshtrain-output", "/work/output"),
                                       ::testing::Pair("meshtrain-work", "/work")}));
  std::map<std::string, std::string> claims;
  for (const Json& volume : pod["spec"]["volumes"]) {
    if (!volume.contains("persistentVolumeClaim")) continue;
    claims[volume["name"]] = volume["persistentVolumeClaim"]["claimName"];
  }
  EXPECT_THAT(claims, ::testing::ElementsAre(::testing::Pair("meshtrain-claim-0", "digits"),
                                             ::testing::Pair("meshtrain-claim-1", "big"),
                                             ::testing::Pair("meshtrain-output", "runs")));
  EXPECT_EQ(Env(pod, "MESHTRAIN_OUTPUT"), "/work/output/mnist/worker-1");
  EXPECT_EQ(Env(Pod(builder.Build(), kWorker0), "MESHTRAIN_OUTPUT"), "/work/output/mnist");
  EXPECT_EQ(Env(pod, "MESHTRAIN_CHECKPOINT"), "") << "the leader saves for all, beside its output";

  // An evaluator has to see the checkpoints.
  const auto evaluated =
      builder.Evaluator()
          .With([](api::TrainingJob& job) { job.spec.output->folder = "team/one"; })
          .Build();
  EXPECT_EQ(Env(Pod(evaluated, kWorker0), "MESHTRAIN_CHECKPOINT"),
            R"({"path":"/work/output/team/one/checkpoints","resume":"Latest"})");
  EXPECT_EQ(Env(Pod(evaluated, {Role::kEvaluator, 0}), "MESHTRAIN_OUTPUT"),
            "/work/output/team/one/evaluator-0");

  // A template's folder is where relative paths begin, and its own mounts stay.
  pod = Pod(builder
                .Template(Role::kWorker, R"({"spec":{"containers":[{"name":"t","image":"i",
    "workingDir":"/src","volumeMounts":[{"name":"mine","mountPath":"/src/data"}]}]}})")
                .Build(),
            kWorker1);
  EXPECT_THAT(Mounts(pod),
              ::testing::ElementsAre(::testing::Pair("meshtrain-claim-1", "/mnt/a x/y"),
                                     ::testing::Pair("meshtrain-output", "/work/output"),
                                     ::testing::Pair("meshtrain-token", "/etc/meshtrain/token ro"),
                                     ::testing::Pair("mine", "/src/data")));
  EXPECT_EQ(pod["spec"]["containers"][0]["workingDir"], "/src");
}

// So that servers and workers know for how long they may go on serving a chief that saves.
TEST(ChildrenTest, ADeclaredProgramIsToldTheGracePeriodOfItsTemplate) {
  const auto env = [](const char* spec, const char* program) {
    auto job = MakeJob("mnist").Workers(2).Template(Role::kWorker,
                                                    std::string(R"({"spec":)") + spec + "}");
    if (*program != 0) job.Program(program);
    return Env(Pod(job.Build(), kWorker1), "MESHTRAIN_STOP_GRACE_SECONDS");
  };
  EXPECT_EQ(env(R"({"terminationGracePeriodSeconds":600})", "{}"), "600");
  EXPECT_EQ(env("{}", "{}"), "");
  EXPECT_EQ(
      env(R"({"terminationGracePeriodSeconds":600,"containers":[{"name":"tensorflow","image":"own"}]})",
          ""),
      "");
}

TEST(ChildrenTest, OddTemplatesDoNotThrow) {
  for (const char* text :
       {"{}", "[]", "5", R"({"spec":5})", R"({"metadata":{"labels":7,"annotations":[]},"spec":{}})",
        R"({"spec":{"containers":[5]}})",
        R"({"spec":{"volumes":[{"name":3}],"containers":[{"name":4,
                           "env":{"a":1},"ports":7,"volumeMounts":[3]}]}})"}) {
    auto job = MakeJob("a")
                   .Workers(5000)
                   .Template(Role::kWorker, text)
                   .Program(testing_support::kProgram)
                   .Build();
    EXPECT_TRUE(Json::parse(PodBody(job, {}, {.name = "a-worker-0", .task = kWorker0})).is_object())
        << text;
  }
}

// Strategic merge patches: owners are told apart by uid, and those of others stay.
TEST(ChildrenTest, AdoptAndReleaseNameOneOwnerUnderThePodsUid) {
  const auto job = MakeJob("mnist").Build();
  const Json adopt = Json::parse(AdoptBody(job, {.name = "p", .uid = "u"}))["metadata"];
  EXPECT_EQ(adopt["uid"], "u");
  EXPECT_EQ(adopt["ownerReferences"][0]["uid"], "uid-1");
  EXPECT_EQ(ReleaseBody(job, {.name = "p", .uid = "u"}),
            R"({"metadata":{"ownerReferences":[{"$patch":"delete","uid":"uid-1"}],"uid":"u"}})");
}

}  // namespace
}  // namespace meshtrain::reconcile
