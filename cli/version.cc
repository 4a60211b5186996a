#include <CLI/CLI.hpp>
#include <ostream>

#include "cli/verbs.h"

namespace meshtrain::cli {

void AddVersion(CLI::App& app, Action* chosen) {
  CLI::App* verb = app.add_subcommand("version", "Print the version");
  verb->callback([chosen] {
    *chosen = [](const Console& console) {
      console.out << "meshtrain " MT_VERSION "\n";
      return 0;
    };
  });
}

}  // namespace meshtrain::cli
