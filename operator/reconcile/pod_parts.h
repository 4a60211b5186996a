// What a pod's body gets beside names, labels and variables (children.h): storage, devices and the
// settings that a strict cluster asks for. Internal to operator/reconcile. Wherever the user's
// template says something, the template wins.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/check.h"
#include "operator/api/training_job.h"
#include "operator/reconcile/observed.h"
#include "runtime/cluster/tf_config.h"
#include "runtime/mesh/tpu_slice.h"

namespace meshtrain::reconcile::internal {

using api::JsonRef;

// A path of the manifest as a path in the container: "data" -> "/work/data".
std::string InContainer(const api::PodTemplate& given, const std::string& path);

// Volumes and their mounts: the job's claims, the output's claim, and what our worker writes
// elsewhere (its working directory and /tmp, which go with the pod). A path at which the template
// mounts something already is left to it. `ours`: the container runs our worker's image.
void AddStorage(const api::TrainingJob& job, cluster::TaskId task, bool ours, JsonRef spec,
                JsonRef container);

// What Pod Security `restricted` asks of a pod, for a container that runs our worker's image; of
// other images nobody but their owner knows what they need. `fs_group`: the volumes' group;
// nothing: the cluster gives one.
void AddSecurity(std::optional<int64_t> fs_group, JsonRef spec, JsonRef container);

// The devices of a job's replicas, by what their templates ask of the node (`google.com/tpu`,
// `nvidia.com/gpu`) for the container that trains, else by the slice that the program names.
struct Devices {
  struct Asked {
    int64_t tpus = 0, gpus = 0;
    // The template asks for no TPUs, the program does: the slice is this process's alone.
    const mesh::TpuSlice* slice = nullptr;
    bool gpus_of_program = false;  // likewise of GPUs
  };
  std::map<api::Role, Asked> roles;
  // Those whose templates ask for TPUs, in the order of roles and indices, and their hosts without
  // ports.
  std::vector<cluster::TaskId> tpu_tasks;
  std::string tpu_hosts;  // with commas
};
Devices FindDevices(const api::TrainingJob& job, const cluster::ClusterSpec& all);

// What a slice of the program asks of the node: `google.com/tpu`, and GKE's labels of nodes for the
// kind of chips and the shape of the slice; what its GPUs do: `nvidia.com/gpu`. And what programs
// need to find their devices and each other's, beside what the node's device plugin says:
// TPU_WORKER_ID and TPU_WORKER_HOSTNAMES, by which libtpu, JAX and TPUClusterResolver know a slice
// of several hosts; NVIDIA_VISIBLE_DEVICES=void for a replica without GPUs beside some with them,
// since images for GPUs ask for all of a node's; memory as /dev/shm where a pod has several
// devices, whose processes meet there (a container's own is 64 MiB).
void AddDevices(const api::TrainingJob& job, const Devices& devices,
                const cluster::ClusterSpec& all, cluster::TaskId task, JsonRef spec,
                JsonRef container);

// The access bits of the token's file: for the volumes' group where the pod has one, else for all
// processes of the container, which is the only one that mounts it.
int TokenMode(JsonRef spec);

// A variable of the container, unless it has one of that name or the kernel would refuse the value:
// without it the pod says what is missing instead of failing to start.
void AddVariable(JsonRef container, std::string_view name, std::string value);

// Adds a volume and its mount; a volume of that name, and a mount at that path, stay as they are.
// `source` is JSON: {"emptyDir":{}}.
void Mount(JsonRef spec, JsonRef container, const std::string& volume, std::string_view source,
           std::string_view path, bool read_only = true, std::string_view sub_path = {});

}  // namespace meshtrain::reconcile::internal
