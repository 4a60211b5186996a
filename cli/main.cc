// meshtrain: train a manifest here, see what it will cost, check it.
#include <CLI/CLI.hpp>

#include "cli/verbs.h"
#include "runtime/cluster/contract.h"

int main(int argc, char** argv) {
  namespace cli = meshtrain::cli;
  CLI::App app("Trains neural networks on many devices, from one manifest.", "meshtrain");
  app.require_subcommand(1);
  app.set_help_flag("-h,--help", "Print this help and leave");
  app.set_version_flag("--version", MT_VERSION);
  cli::Action chosen;
  cli::AddRun(app, &chosen);
  cli::AddPlan(app, &chosen);
  cli::AddValidate(app, &chosen);
  cli::AddVersion(app, &chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : meshtrain::cluster::kExitUsage;
  }
  return chosen();
}
