// `meshtrain-worker evaluate`, `predict` and `generate`: a trained model of a manifest applied to
// data or to a prompt, in this process alone. The verbs of these names of `meshtrain` start them.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <variant>

#include "runtime/base/status.h"
#include "runtime/train/figures.h"
#include "runtime/trainer/job/config.h"
#include "worker/outputs.h"

namespace meshtrain::worker {

struct ApplyConfig {
  std::string caller;  // what errors begin with: "meshtrain-worker evaluate"
  trainer::JobConfig job;
  bool one_device = false;
  std::string from;  // WeightsAt
  // evaluate
  std::string data;              // folder of the test data's files; "": where the manifest says
  std::string report = "table";  // table, json or yaml
  // predict
  std::string input, output;  // `input` "": not predict. `output` "-": stdout
  OutputFormat format = OutputFormat::kCsv;
  // generate, to `output`; what is not given is the manifest's
  bool generate = false;
  std::optional<std::string> prompt;
  std::optional<int64_t> length, seed;
  std::optional<double> temperature;
};

// Whether the arguments ask for one of them.
bool AsksToApply(int argc, char** argv);
// The configuration, or the exit code of a process that only had to say something.
std::variant<ApplyConfig, int> ParseApply(int argc, char** argv);
// Results go to stdout or to `output`, the error that is returned to stderr.
Status Apply(const ApplyConfig& config, std::stop_token stop);

// The figures of an evaluation for people and for programs. Pure.
//   table: a line each, as the run's own table shows them; json, yaml: in full
std::string FormatFigures(const std::string& weights, int64_t examples,
                          const train::Scalars& figures, const std::string& report);

}  // namespace meshtrain::worker
