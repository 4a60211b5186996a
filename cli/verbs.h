// One function per verb of the command line. Each adds itself to the parser; what it returns when
// chosen is the process's exit code (runtime/cluster/contract.h).
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace meshtrain::cli {

// Set by the verb that the user chose.
using Action = std::function<int()>;

void AddRun(CLI::App& app, Action* chosen);
void AddPlan(CLI::App& app, Action* chosen);
void AddValidate(CLI::App& app, Action* chosen);
void AddVersion(CLI::App& app, Action* chosen);

}  // namespace meshtrain::cli
