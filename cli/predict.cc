#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/trained.h"
#include "cli/verbs.h"

namespace meshtrain::cli {
namespace {

struct PredictFlags {
  TrainedFlags trained;
  std::string input;
  std::string output;
  std::string format;
};

}  // namespace

void AddPredict(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<PredictFlags>();
  CLI::App* verb = app.add_subcommand(
      "predict",
      "Write what a trained model predicts for each example of a file, in the file's order; "
      "data.map is applied as in training. Of a model of several outputs each has a file, "
      "OUTPUT with the output's name before its ending");
  AddTrainedFlags(verb, &flags->trained);
  verb->add_option("-i,--input", flags->input,
                   "The features: an IDX file, gzipped or not, or numpy's .npy")
      ->required();
  verb->add_option("-o,--output", flags->output,
                   "A file that is not there yet: .npy, .csv or .jsonl; -: stdout, as CSV")
      ->required();
  verb->add_option("--format", flags->format, "npy, csv or jsonl (default: by the output's name)")
      ->check(CLI::IsMember({"npy", "csv", "jsonl"}));
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      std::vector<std::string> more = {"--input=" + flags->input, "--output=" + flags->output};
      if (!flags->format.empty()) more.insert(more.end(), {"--format", flags->format});
      return RunTrained("predict", flags->trained, more, console);
    };
  });
}

}  // namespace meshtrain::cli
