#include <CLI/CLI.hpp>
#include <memory>

#include "cli/cluster/change.h"

namespace meshtrain::cli {

void AddSuspend(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<ChangeFlags>();
  CLI::App* verb = app.add_subcommand(
      "suspend", "Delete the pods of jobs and keep them waiting; checkpoints stay");
  verb->add_option("jobs", flags->names, "The jobs' names")->required()->check(CheckJobName);
  AddClusterFlags(verb, &flags->cluster);
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      return EndOfCall("suspend", SetSuspend(*flags, "suspend", true, console), console);
    };
  });
}

}  // namespace meshtrain::cli
