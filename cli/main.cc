// meshtrain: train a manifest here, see what it will cost, check it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "runtime/base/out_of_memory.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"

int main(int argc, char** argv) {
  namespace cli = meshtrain::cli;
  meshtrain::ExitWhereMemoryEnds("meshtrain", meshtrain::cluster::kExitBadConfig);
  CLI::App app("Trains neural networks on many devices, from one manifest.", "meshtrain");
  app.require_subcommand(1);
  app.set_help_flag("-h,--help", "Print this help and leave");
  app.set_version_flag("--version", MT_VERSION);
  cli::Action chosen;
  cli::AddRun(app, &chosen);
  cli::AddPlan(app, &chosen);
  cli::AddValidate(app, &chosen);
  cli::AddVersion(app, &chosen);
  // CLI11 would only say that a verb is missing.
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  if (argc > 1 && argv[1][0] != '-' &&
      std::find(verbs.begin(), verbs.end(), argv[1]) == verbs.end()) {
    std::fprintf(stderr, "meshtrain: expected one of the verbs %s, got: %s%s\n",
                 meshtrain::Join(verbs, ", ").c_str(), meshtrain::Excerpt(argv[1]).c_str(),
                 meshtrain::DidYouMean(argv[1], verbs).c_str());
    return meshtrain::cluster::kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : meshtrain::cluster::kExitUsage;
  }
  return chosen();
}
