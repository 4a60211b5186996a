// What a pod's body gets beside names, labels and variables (children.h): storage and the settings
// that a strict cluster asks for. Internal to operator/reconcile. Wherever the user's template says
// something, the template wins.
#pragma once

#include <string>
#include <string_view>

#include "operator/api/check.h"
#include "operator/api/training_job.h"
#include "operator/reconcile/observed.h"

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

// The access bits of the token's file: for the volumes' group where the pod has one, else for all
// processes of the container, which is the only one that mounts it.
int TokenMode(JsonRef spec);

// Adds a volume and its mount; a volume of that name, and a mount at that path, stay as they are.
// `source` is JSON: {"emptyDir":{}}.
void Mount(JsonRef spec, JsonRef container, const std::string& volume, std::string_view source,
           std::string_view path, bool read_only = true, std::string_view sub_path = {});

}  // namespace meshtrain::reconcile::internal
