#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/verbs.h"

namespace meshtrain::cli {

void AddVersion(CLI::App& app, Action* chosen) {
  CLI::App* verb = app.add_subcommand("version", "Print the version");
  verb->callback([chosen] {
    *chosen = [] {
      std::puts("meshtrain " MT_VERSION);
      return 0;
    };
  });
}

}  // namespace meshtrain::cli
