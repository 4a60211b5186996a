#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/trained.h"
#include "cli/verbs.h"

namespace meshtrain::cli {
namespace {

struct EvaluateFlags {
  TrainedFlags trained;
  std::string data;
  std::string format = "table";
};

}  // namespace

void AddEvaluate(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<EvaluateFlags>();
  CLI::App* verb = app.add_subcommand(
      "evaluate",
      "Print loss and metrics of a trained model on the manifest's test data; its training data "
      "need not be there");
  AddTrainedFlags(verb, &flags->trained);
  verb->add_option("--data", flags->data,
                   "Folder with files of the names that data.test has (default: where it says)");
  verb->add_option("-o,--output", flags->format, "table, json or yaml")
      ->check(CLI::IsMember({"table", "json", "yaml"}))
      ->capture_default_str();
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      std::vector<std::string> more = {"--output", flags->format};
      if (!flags->data.empty()) more.insert(more.end(), {"--data", flags->data});
      return RunTrained("evaluate", flags->trained, more, console);
    };
  });
}

}  // namespace meshtrain::cli
