// What pods with TPUs and GPUs are given.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "operator/reconcile/children.h"
#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using cluster::Role;
using cluster::TaskId;
using Json = nlohmann::json;

Json RenderedPod(const api::TrainingJob& job, TaskId task) {
  return Json::parse(PodBody(
      job, {}, {.name = cluster::PodName(job.metadata.name, task), .task = task, .attempt = 0}));
}

std::string Template(const std::string& container, const std::string& spec = "") {
  return R"({"spec":{)" + spec + R"("containers":[{"name":"log","image":"l"},{"name":"trainer",)" +
         R"("image":"t:1")" + container + "}]}}";
}
std::string Asking(const std::string& resources) {
  return Template(R"(,"resources":{"limits":{)" + resources + "}}");
}

const Json& Trainer(const Json& pod) { return pod["spec"]["containers"][1]; }

// Of the container that trains; "-" where it has no such variable.
std::string TrainerEnv(const Json& pod, const std::string& name) {
  for (const Json& variable : Trainer(pod).value("env", Json::array())) {
    if (variable["name"] == name) return variable.value("value", "");
  }
  return "-";
}

// Where memory is mounted as /dev/shm, the volume's source; else null.
Json Shm(const Json& pod) {
  for (const Json& mount : Trainer(pod).value("volumeMounts", Json::array())) {
    if (mount["mountPath"] != "/dev/shm") continue;
    EXPECT_FALSE(mount.value("readOnly", false));
    for (const Json& volume : pod["spec"]["volumes"]) {
      if (volume["name"] == mount["name"]) return volume;
    }
  }
  return nullptr;
}

TEST(PodDevicesTest, HostsOfATpuSliceKnowTheirPlacesAndEachOther) {
  const auto job = MakeJob("slice")
                       .Chief()
                       .Workers(2)
                       .Evaluator()
                       .Template(Role::kChief, Asking(R"("google.com/tpu":"4")"))
                       .Template(Role::kWorker, Asking(R"("google.com/tpu":4)"))
                       .Template(Role::kEvaluator, Template(""))
                       .Build();
  const std::string hosts =
      "slice-chief-0.slice.ml.svc,slice-worker-0.slice.ml.svc,"
      "slice-worker-1.slice.ml.svc";
  const std::pair<TaskId, std::string> places[] = {
      {{Role::kChief, 0}, "0"}, {{Role::kWorker, 0}, "1"}, {{Role::kWorker, 1}, "2"}};
  for (const auto& [task, place] : places) {
    const Json pod = RenderedPod(job, task);
    EXPECT_EQ(TrainerEnv(pod, "TPU_WORKER_ID"), place);
    EXPECT_EQ(TrainerEnv(pod, "TPU_WORKER_HOSTNAMES"), hosts);
    EXPECT_EQ(TrainerEnv(pod, "TPU_NAME"), "-");
    EXPECT_EQ(TrainerEnv(pod, "NVIDIA_VISIBLE_DEVICES"), "-");
    EXPECT_EQ(Shm(pod)["emptyDir"], Json::parse(R"({"medium":"Memory"})"));
    EXPECT_EQ(pod["spec"]["containers"][0], Json::parse(R"({"name":"log","image":"l"})"));
  }
  const Json evaluator = RenderedPod(job, {Role::kEvaluator, 0});
  EXPECT_EQ(TrainerEnv(evaluator, "TPU_WORKER_ID"), "-");
  EXPECT_EQ(TrainerEnv(evaluator, "TPU_WORKER_HOSTNAMES"), "-");
  EXPECT_TRUE(Shm(evaluator).is_null());
}

TEST(PodDevicesTest, AloneOnItsTpuTensorFlowsResolverFindsItWithoutArguments) {
  const auto builder =
      MakeJob("one").Workers(1).Template(Role::kWorker, Asking(R"("google.com/tpu":1)"));
  EXPECT_EQ(TrainerEnv(RenderedPod(builder.Build(), kWorker0), "TPU_NAME"), "-")
      << "no strategy that asks";
  auto job = builder.Build();
  job.spec.strategy = "TPU";
  const Json pod = RenderedPod(job, kWorker0);
  EXPECT_EQ(TrainerEnv(pod, "TPU_NAME"), "local");
  EXPECT_EQ(TrainerEnv(pod, "TPU_WORKER_ID"), "0");
  EXPECT_EQ(TrainerEnv(pod, "TPU_WORKER_HOSTNAMES"), "one-worker-0.one.ml.svc");
  EXPECT_EQ(TrainerEnv(pod, "TF_CONFIG"), "-");
  EXPECT_TRUE(Shm(pod).is_null()) << "one chip, one process";
  job.spec.replica_specs[Role::kWorker].replicas = 2;
  EXPECT_EQ(TrainerEnv(RenderedPod(job, kWorker1), "TPU_NAME"), "-");
}

TEST(PodDevicesTest, ReplicasWithoutGpusBesideSomeWithThemSeeNone) {
  const auto job = MakeJob("mnist")
                       .Chief()
                       .Workers(2)
                       .Ps(1)
                       .Template(Role::kChief, Template(""))
                       .Template(Role::kWorker, Asking(R"("nvidia.com/gpu":8)"))
                       .Template(Role::kPs, Asking(R"("nvidia.com/gpu":"0")"))
                       .Build();
  const Json worker = RenderedPod(job, kWorker1);
  EXPECT_EQ(TrainerEnv(worker, "NVIDIA_VISIBLE_DEVICES"), "-") << "the device plugin says which";
  EXPECT_EQ(TrainerEnv(worker, "TPU_WORKER_ID"), "-");
  EXPECT_EQ(Shm(worker)["emptyDir"], Json::parse(R"({"medium":"Memory"})"));
  for (const TaskId task : {kChief, TaskId{Role::kPs, 0}}) {
    EXPECT_EQ(TrainerEnv(RenderedPod(job, task), "NVIDIA_VISIBLE_DEVICES"), "void");
    EXPECT_TRUE(Shm(RenderedPod(job, task)).is_null());
  }
  const Json plain = RenderedPod(
      MakeJob("plain").Chief().Workers(1).Template(Role::kChief, Template("")).Build(), kChief);
  EXPECT_EQ(TrainerEnv(plain, "NVIDIA_VISIBLE_DEVICES"), "-") << "nobody asks for GPUs";
}

TEST(PodDevicesTest, WhatTheTemplateSaysStays) {
  const auto job =
      MakeJob("own")
          .Workers(1)
          .Template(Role::kWorker,
                    Template(R"(,"env":[{"name":"TPU_WORKER_ID","value":"7"},)"
                             R"({"name":"TPU_WORKER_HOSTNAMES","value":"a,b"}],)"
                             R"("volumeMounts":[{"name":"mine","mountPath":"/dev/shm"}],)"
                             R"("resources":{"requests":{"google.com/tpu":4}})",
                             R"("volumes":[{"name":"mine","emptyDir":{"sizeLimit":"1Gi"}}],)"))
          .Build();
  const Json pod = RenderedPod(job, kWorker0);
  EXPECT_EQ(TrainerEnv(pod, "TPU_WORKER_ID"), "7");
  EXPECT_EQ(TrainerEnv(pod, "TPU_WORKER_HOSTNAMES"), "a,b");
  EXPECT_EQ(Shm(pod)["name"], "mine");
  EXPECT_EQ(pod["spec"]["volumes"].size(), 1u);
}

// --- a slice that the program names

constexpr const char* kOnASlice = R"({"devices":{"kind":"tpu","slice":"v5e-8"}})";

TEST(PodDevicesTest, ASliceOfTheProgramIsAskedOfTheNode) {
  auto job = MakeJob("mlp").Chief().Evaluator().Build();
  job.spec.program = kOnASlice;
  for (const TaskId task : {kChief, TaskId{Role::kEvaluator, 0}}) {
    const Json pod = RenderedPod(job, task);
    const Json& spec = pod["spec"];
    EXPECT_EQ(spec["containers"][0]["resources"],
              Json::parse(R"({"limits":{"google.com/tpu":8}})"));
    EXPECT_EQ(spec["nodeSelector"],
              Json::parse(R"({"cloud.google.com/gke-tpu-accelerator":"tpu-v5-lite-podslice",)"
                          R"("cloud.google.com/gke-tpu-topology":"2x4"})"));
  }
  // Each is a slice by itself.
  job = MakeJob("mlp")
            .Chief()
            .Workers(2)
            .Ps(1)
            .Template(Role::kWorker, Template(R"(,"resources":{"limits":{"memory":"9Gi"}})",
                                              R"("nodeSelector":{"zone":"a"},)"))
            .Build();
  job.spec.program = kOnASlice;
  job.spec.strategy = "ParameterServer";
  const Json worker = RenderedPod(job, kWorker1);
  EXPECT_EQ(TrainerEnv(worker, "TPU_WORKER_ID"), "0");
  EXPECT_EQ(TrainerEnv(worker, "TPU_WORKER_HOSTNAMES"), "mlp-worker-1.mlp.ml.svc");
  EXPECT_EQ(Trainer(worker)["resources"]["limits"],
            Json::parse(R"({"google.com/tpu":8,"memory":"9Gi"})"));
  EXPECT_EQ(worker["spec"]["nodeSelector"].size(), 3u);
  EXPECT_EQ(Shm(worker)["emptyDir"], Json::parse(R"({"medium":"Memory"})"));
  for (const TaskId task : {kChief, TaskId{Role::kPs, 0}}) {
    const Json pod = RenderedPod(job, task);
    EXPECT_FALSE(pod["spec"].contains("nodeSelector")) << "computes nothing";
    EXPECT_FALSE(pod["spec"]["containers"][0].contains("resources"));
  }
}

TEST(PodDevicesTest, ATemplateThatAsksForTpusOrChoosesItsNodeIsLeftToIt) {
  auto job =
      MakeJob("mlp").Workers(1).Template(Role::kWorker, Asking(R"("google.com/tpu":4)")).Build();
  job.spec.program = kOnASlice;
  const Json asks = RenderedPod(job, kWorker0);
  EXPECT_EQ(Trainer(asks)["resources"]["limits"]["google.com/tpu"], 4);
  EXPECT_FALSE(asks["spec"].contains("nodeSelector"));
  job.spec.replica_specs[Role::kWorker].pod_template.json =
      Template("", R"("nodeSelector":{"cloud.google.com/gke-tpu-topology":"4x4"},)");
  const Json chooses = RenderedPod(job, kWorker0);
  EXPECT_EQ(Trainer(chooses)["resources"]["limits"]["google.com/tpu"], 8);
  EXPECT_EQ(chooses["spec"]["nodeSelector"],
            Json::parse(R"({"cloud.google.com/gke-tpu-topology":"4x4"})"));
  for (const char* none : {R"({"devices":{"kind":"tpu","slice":"v9-8"}})", R"({"slice":1})",
                           R"({"devices":{"slice":8}})", R"("slice")"}) {
    auto odd = MakeJob("mlp").Workers(1).Build();
    odd.spec.program = none;
    EXPECT_FALSE(RenderedPod(odd, kWorker0)["spec"].contains("nodeSelector")) << none;
  }
}

TEST(PodDevicesTest, GpusOfTheProgramAreAskedOfTheNode) {
  auto job = MakeJob("mlp").Chief().Workers(2).Ps(1).Build();
  job.spec.strategy = "ParameterServer";
  const auto gpus = [&](const char* program, TaskId task) {
    job.spec.program = program;
    const Json pod = RenderedPod(job, task);
    const Json& container = pod["spec"]["containers"][0];
    return container.contains("resources") ? container["resources"]["limits"] : Json();
  };
  const Json four = Json::parse(R"({"nvidia.com/gpu":4})");
  EXPECT_EQ(gpus(R"({"devices":{"kind":"cuda","count":4}})", kWorker1), four);
  EXPECT_EQ(gpus(R"({"devices":{"kind":"cuda"},"mesh":{"batch":2,"model":2}})", kWorker1), four);
  EXPECT_EQ(gpus(R"({"devices":{"kind":"cuda"}})", kWorker1),
            Json::parse(R"({"nvidia.com/gpu":1})"));
  for (const char* none :
       {R"({"devices":{"kind":"cpu","count":4},"name":"cuda"})", R"({"devices":"cuda"})",
        R"({"devices":{"kind":"cuda"},"mesh":{"a":65536,"b":65536}})", "\"cuda\"", "{\"cuda\""}) {
    EXPECT_EQ(gpus(none, kWorker1), Json()) << none;
  }
  // Several processes' memory, and what computes nothing.
  job.spec.program = R"({"devices":{"kind":"cuda","count":4}})";
  EXPECT_NE(RenderedPod(job, kWorker1).dump().find(R"("mountPath":"/dev/shm")"), std::string::npos);
  for (const TaskId task : {kChief, TaskId{Role::kPs, 0}}) {
    const Json pod = RenderedPod(job, task);
    EXPECT_FALSE(pod["spec"]["containers"][0].contains("resources"));
    EXPECT_NE(pod.dump().find(R"("name":"NVIDIA_VISIBLE_DEVICES","value":"void")"),
              std::string::npos);
  }
  // A template that asks says all of it.
  job = MakeJob("mlp").Workers(1).Template(Role::kWorker, Asking(R"("nvidia.com/gpu":2)")).Build();
  job.spec.program = R"({"devices":{"kind":"cuda","count":4}})";
  EXPECT_EQ(Trainer(RenderedPod(job, kWorker0))["resources"]["limits"]["nvidia.com/gpu"], 2);
}

TEST(PodDevicesTest, NonsenseInATemplateIsNoDevice) {
  for (const std::string resources :
       {R"("google.com/tpu":"many")", R"("google.com/tpu":-1)", R"("google.com/tpu":{})",
        R"("nvidia.com/gpu":null)", R"("nvidia.com/gpu":"")"}) {
    const auto job = MakeJob("odd").Workers(1).Template(Role::kWorker, Asking(resources)).Build();
    const Json pod = RenderedPod(job, kWorker0);
    EXPECT_EQ(TrainerEnv(pod, "TPU_WORKER_ID"), "-") << resources;
    EXPECT_EQ(TrainerEnv(pod, "NVIDIA_VISIBLE_DEVICES"), "-") << resources;
    EXPECT_TRUE(Shm(pod).is_null()) << resources;
  }
}

}  // namespace
}  // namespace meshtrain::reconcile
