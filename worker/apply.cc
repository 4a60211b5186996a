#include "worker/apply.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/usage_error.h"
#include "runtime/data/idx.h"
#include "runtime/data/npy.h"
#include "runtime/data/pipeline.h"
#include "runtime/manifest/node.h"
#include "runtime/membership/arithmetic_agreement.h"
#include "runtime/trainer/job/choices.h"
#include "worker/read_manifest.h"
#include "worker/trained.h"

namespace meshtrain::worker {
namespace {

// The features of a file: an IDX file, gzipped or not, or numpy's. Errors: the readers'; of kInput.
Result<mesh::Tensor> ReadFeatures(const std::string& path) {
  mesh::Tensor features;
  if (path.ends_with(".npy")) {
    MT_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, int64_t{16} << 30));
    MT_ASSIGN_OR_RETURN(features, data::ParseNpy(bytes, path));
  } else {
    MT_ASSIGN_OR_RETURN(const auto reader, data::IdxReader::Open(path));
    features = mesh::Tensor(reader->type());
    MT_RETURN_IF_ERROR(reader->Read(features.mutable_bytes()));
    MT_RETURN_IF_ERROR(reader->Finish());
  }
  if (features.dims().empty() || features.dims()[0] == 0) {
    return InvalidArgument(path +
                           ": expected at least one example, got: " + features.type().ToString());
  }
  return features;
}

Status CheckFree(const std::string& output) {
  if (output == "-") return OkStatus();
  struct stat found {};
  if (::lstat(output.c_str(), &found) != 0) return OkStatus();
  return AlreadyExists(output + ": expected no file of this name, got: one that is there already")
      .From(Origin::kOutput);
}

Status WriteAll(const std::string& bytes) {
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size();
  if (written && std::fflush(stdout) == 0) return OkStatus();
  return Unavailable("standard output: cannot be written to").From(Origin::kOutput);
}

// Weights that do not fit say of which data the model was made.
Status Load(TrainedModel& model, const std::string& weights, const std::string& what,
            const mesh::TensorType& type) {
  mesh::TensorType example = type;
  example.dims.erase(example.dims.begin());
  return model.LoadWeights(
      weights, "the manifest's model on examples of " + example.ToString() + ", those of " + what);
}

Status Evaluate(const ApplyConfig& config, manifest::Manifest manifest, std::stop_token stop) {
  manifest::Program& program = manifest.program;
  if (!program.data.test) {
    return InvalidArgument(program.Where("data.test") + ": expected data to evaluate on, got: none")
        .From(Origin::kManifest);
  }
  if (!config.data.empty()) {
    MT_RETURN_IF_ERROR(recipe::MoveTestData(config.data, &program).From(Origin::kManifest));
  }
  MT_ASSIGN_OR_RETURN(const std::string weights, WeightsAt(config.from));
  MT_ASSIGN_OR_RETURN(const auto data, data::Pipeline::Create(recipe::TestPipeline(program)));
  const int64_t steps = program.train.validation_steps;
  int64_t examples = (data->steps_per_epoch() - 1) * data->batch_size() + data->last_batch_size();
  if (steps > 0) examples = std::min(examples, steps * data->batch_size());
  TrainedModel model(config.job, std::move(manifest), config.one_device);
  MT_RETURN_IF_ERROR(model.PlanEvaluation(*data));
  MT_RETURN_IF_ERROR(Load(model, weights, "data.test", data->BatchTypes(1)[0]));
  MT_ASSIGN_OR_RETURN(const train::Scalars figures, model.Evaluate(*data, stop));
  return WriteAll(FormatFigures(weights, examples, figures, config.report));
}

// The files that the outputs of the manifest's model go to, in their order. Errors: a file that is
// there; several outputs and one place.
Result<std::vector<std::string>> FilesOf(const ApplyConfig& config,
                                         const manifest::Program& program) {
  std::vector<std::string> files;
  for (const manifest::Output& output : manifest::Outputs(program)) {
    if (!output.layer.empty() && config.output == "-") {
      return InvalidArgument("--output: expected a file's name, since " + program.Where("outputs") +
                             " gives each output a file of its own, got: -")
          .From(Origin::kManifest);
    }
    files.push_back(FileOfOutput(config.output, output.layer));
    MT_RETURN_IF_ERROR(CheckFree(files.back()));
  }
  return files;
}

Status Predict(const ApplyConfig& config, manifest::Manifest manifest, std::stop_token stop) {
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(config, manifest.program));
  MT_ASSIGN_OR_RETURN(const std::string weights, WeightsAt(config.from));
  MT_ASSIGN_OR_RETURN(mesh::Tensor features, ReadFeatures(config.input).From(Origin::kInput));
  MT_ASSIGN_OR_RETURN(
      const auto data,
      data::Pipeline::Create(recipe::PredictPipeline(
          manifest.program, {.components = {std::move(features)}, .file = config.input})));
  TrainedModel model(config.job, std::move(manifest), config.one_device);
  MT_RETURN_IF_ERROR(model.PlanPrediction(*data));
  MT_RETURN_IF_ERROR(Load(model, weights, config.input, data->BatchTypes(1)[0]));
  MT_ASSIGN_OR_RETURN(const std::vector<mesh::Tensor> predictions, model.Predict(*data, stop));
  if (config.output == "-") return WriteAll(FormatOutputs(predictions[0], config.format));
  for (const std::string& file : files) MT_RETURN_IF_ERROR(CheckFree(file));
  for (size_t i = 0; i < files.size(); ++i) {
    MT_RETURN_IF_ERROR(WriteFileAtomically(files[i], FormatOutputs(predictions[i], config.format))
                           .From(Origin::kOutput));
  }
  return OkStatus();
}

// The prompt and what the model writes behind it: as it is into a file or a pipe, for a terminal
// what can only be read.
Status Generate(const ApplyConfig& config, manifest::Manifest manifest, std::stop_token stop) {
  MT_RETURN_IF_ERROR(CheckFree(config.output));
  std::optional<manifest::Generate>& asked = manifest.program.generate;
  if (!asked && !config.prompt) {
    return InvalidArgument("--prompt: expected a prompt, since " +
                           manifest.program.Where("generate") + " asks for no text, got: none")
        .From(Origin::kManifest);
  }
  if (!asked) asked.emplace();
  asked->prompt = config.prompt.value_or(asked->prompt);
  asked->length = config.length.value_or(asked->length);
  asked->temperature = config.temperature.value_or(asked->temperature);
  if (config.seed) asked->seed = config.seed;
  MT_RETURN_IF_ERROR(manifest::CharacterNumbers(manifest.program, asked->prompt)
                         .status()
                         .At(config.prompt ? "--prompt" : manifest.program.Where("generate.prompt"))
                         .From(Origin::kManifest));
  MT_ASSIGN_OR_RETURN(const std::string weights, WeightsAt(config.from));
  TrainedModel model(config.job, std::move(manifest), config.one_device);
  MT_RETURN_IF_ERROR(model.PlanWriting());
  MT_RETURN_IF_ERROR(model.LoadWeights(weights));
  MT_ASSIGN_OR_RETURN(const std::string text, model.Write(stop));
  if (config.output == "-") {
    return WriteAll((::isatty(STDOUT_FILENO) != 0 ? Printable(text) : text) + "\n");
  }
  MT_RETURN_IF_ERROR(CheckFree(config.output));
  return WriteFileAtomically(config.output, text).From(Origin::kOutput);
}

Status Run(const ApplyConfig& config, std::stop_token stop) {
  MT_RETURN_IF_ERROR(
      membership::LimitInstructionSetBy(trainer::ProcessEnvironment()).From(Origin::kManifest));
  MT_ASSIGN_OR_RETURN(manifest::Manifest manifest, ReadManifest(config.job));
  if (config.generate) return Generate(config, std::move(manifest), stop);
  return config.input.empty() ? Evaluate(config, std::move(manifest), stop)
                              : Predict(config, std::move(manifest), stop);
}

void AddCommon(CLI::App* verb, ApplyConfig* config) {
  verb->add_option("-f,--file", config->job.file, "The manifest, YAML or JSON")->required();
  verb->add_option("--manifest-name", config->job.manifest_name,
                   "What errors call the manifest (default: the file's name)");
  verb->add_option("--from", config->from,
                   "The trained weights: a run's folder, a checkpoint or a .safetensors file")
      ->required();
  verb->add_flag("--one-device", config->one_device, "Compute on one device, whatever the mesh is");
  verb->add_option("--threads", config->job.threads,
                   "Threads to compute with (default: one per core)")
      ->check(CLI::Range(0, 4096));
  verb->add_option("--caller", config->caller, "What errors begin with");
}

}  // namespace

bool AsksToApply(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  return verb == "evaluate" || verb == "predict" || verb == "generate";
}

std::variant<ApplyConfig, int> ParseApply(int argc, char** argv) {
  ApplyConfig config{.caller = std::string("meshtrain-worker ") + argv[1]};
  std::string format;
  CLI::App app("Applies a trained model.", "meshtrain-worker");
  app.require_subcommand(1);
  CLI::App* evaluate =
      app.add_subcommand("evaluate", "Print loss and metrics of the manifest's test data");
  AddCommon(evaluate, &config);
  evaluate->add_option("--data", config.data, "Folder of the test data's files");
  evaluate->add_option("-o,--output", config.report, "table, json or yaml")
      ->check(CLI::IsMember({"table", "json", "yaml"}));
  CLI::App* predict = app.add_subcommand("predict", "Write what the model predicts");
  AddCommon(predict, &config);
  predict->add_option("--input", config.input, "The features: an IDX file, gzipped or not, or .npy")
      ->required();
  predict->add_option("--output", config.output, "A file that is not there yet; -: stdout")
      ->required();
  predict->add_option("--format", format, "npy, csv or jsonl")
      ->check(CLI::IsMember({"npy", "csv", "jsonl"}));
  CLI::App* generate = app.add_subcommand("generate", "Write text behind a prompt");
  AddCommon(generate, &config);
  generate->add_option("--prompt", config.prompt, "What the text begins with");
  generate->add_option("--length", config.length, "Characters to write")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  generate->add_option("--temperature", config.temperature, "0: always the likeliest character")
      ->check(CLI::NonNegativeNumber);
  generate->add_option("--seed", config.seed, "What is drawn follows from it");
  generate->add_option("--output", config.output, "A file that is not there yet; -: stdout")
      ->required();
  app.failure_message(cluster::UsageError);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : cluster::kExitUsage;
  }
  config.generate = generate->parsed();
  if (!config.input.empty()) {
    const auto chosen = format.empty() ? config.output == "-" ? std::optional(OutputFormat::kCsv)
                                                              : OutputFormatOf(config.output)
                                       : ParseOutputFormat(format);
    if (!chosen) {
      std::fprintf(
          stderr, "%s: --output: expected a name with .npy, .csv or .jsonl, or --format, got: %s\n",
          config.caller.c_str(), Excerpt(config.output).c_str());
      return cluster::kExitUsage;
    }
    config.format = *chosen;
  }
  return config;
}

Status Apply(const ApplyConfig& config, std::stop_token stop) {
  const Status end = Run(config, std::move(stop));
  if (!end.ok() && end.origin() != Origin::kStop) {
    std::fprintf(stderr, "%s: %s\n", config.caller.c_str(), Printable(end.message()).c_str());
  }
  return end;
}

std::string FormatFigures(const std::string& weights, int64_t examples,
                          const train::Scalars& figures, const std::string& report) {
  if (report == "table") {
    std::string out;
    size_t width = std::string_view("examples").size();
    for (const auto& [name, value] : figures) width = std::max(width, name.size());
    for (const auto& [name, value] : figures) {
      out += fmt::format("{:<{}}   {:.4f}\n", name, width, value);
    }
    return out + fmt::format("{:<{}}   {}\n", "examples", width, examples);
  }
  // What is not finite is null.
  nlohmann::ordered_json root = {{"from", weights}, {"examples", examples}};
  for (const auto& [name, value] : figures) root["figures"][name] = value;
  const std::string json =
      root.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (report == "json") return json;
  const auto tree = manifest::ParseDocuments(json, "figures", [](manifest::Place, std::string) {});
  MT_CHECK(tree.ok() && tree->size() == 1);
  return manifest::ToYaml(tree->front());
}

}  // namespace meshtrain::worker
