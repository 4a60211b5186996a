// A manifest read once, for verbs that need all of it: the TrainingJob as the operator sees it, and
// its program as the worker does.
#pragma once

#include <optional>
#include <string>

#include "operator/api/training_job.h"
#include "runtime/base/status.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::cli {

struct Console;

struct JobFile {
  std::string text;      // the file, as it is
  api::TrainingJob job;  // valid; spec.program keeps the order of the text's keys
  std::optional<manifest::Manifest> program;
  std::string object;  // the TrainingJob of the text as JSON, without defaults
};

// Reads a TrainingJob, or a program alone, which becomes a job of one worker named after the file.
// What only a cluster fills in (namespace, uid, generation) is filled in. Errors, of kManifest:
// kNotFound when there is no such file; kInvalidArgument with every mistake, each with its place:
//   job.yaml:7:17: spec.replicaSpecs.worker.replicas: must be at least 0, got: -1
Result<JobFile> ReadJob(const std::string& file);
// The same, of standard input where `file` is "-".
Result<JobFile> ReadJob(const std::string& file, const Console& console);

// A manifest's tree as compact JSON, keys in the order of the text.
std::string JsonText(const manifest::Node& node);

// Whether the data files of the job's program are those that this process would open. Where
// templates say how replicas run, they may also say that the data is elsewhere.
bool ReadsDataHere(const JobFile& job);

}  // namespace meshtrain::cli
