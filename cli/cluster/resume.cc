#include <CLI/CLI.hpp>
#include <memory>

#include "cli/cluster/change.h"

namespace meshtrain::cli {

void AddResume(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<ChangeFlags>();
  CLI::App* verb =
      app.add_subcommand("resume", "Let suspended jobs run, from their last checkpoint");
  verb->add_option("jobs", flags->names, "The jobs' names")->required()->check(CheckJobName);
  AddClusterFlags(verb, &flags->cluster);
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      return EndOfCall("resume", SetSuspend(*flags, "resume", false, console), console);
    };
  });
}

}  // namespace meshtrain::cli
