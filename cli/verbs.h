// One function per verb of the command line. Each adds itself to the parser; what it returns when
// chosen is the process's exit code (runtime/cluster/contract.h).
#pragma once

#include <functional>
#include <iostream>

namespace CLI {
class App;
}

namespace meshtrain::cli {

// Where a verb writes: its result, and what went wrong; and what `-f -` reads.
struct Console {
  std::ostream& out;
  std::ostream& err;
  std::istream& in = std::cin;
  bool color = false;  // `out` is a terminal whose user wants colours
};

// Set by the verb that the user chose.
using Action = std::function<int(const Console& console)>;

void AddRun(CLI::App& app, Action* chosen);
void AddPlan(CLI::App& app, Action* chosen);
void AddEvaluate(CLI::App& app, Action* chosen);
void AddPredict(CLI::App& app, Action* chosen);
void AddGenerate(CLI::App& app, Action* chosen);
void AddValidate(CLI::App& app, Action* chosen);
void AddConvert(CLI::App& app, Action* chosen);
void AddSubmit(CLI::App& app, Action* chosen);
void AddList(CLI::App& app, Action* chosen);
void AddStatus(CLI::App& app, Action* chosen);
void AddLogs(CLI::App& app, Action* chosen);
void AddEvents(CLI::App& app, Action* chosen);
void AddSuspend(CLI::App& app, Action* chosen);
void AddResume(CLI::App& app, Action* chosen);
void AddScale(CLI::App& app, Action* chosen);
void AddReport(CLI::App& app, Action* chosen);
void AddCompletion(CLI::App& app, Action* chosen);
void AddVersion(CLI::App& app, Action* chosen);

// The command line as a function: parses the arguments, of which the first is the program's name,
// and does what the verb says. Returns the exit code; writes nowhere but to `console`, except what
// `run`, `evaluate`, `predict` and `generate` start.
int RunCommand(int argc, const char* const* argv, const Console& console);

}  // namespace meshtrain::cli
