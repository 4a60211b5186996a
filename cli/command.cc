#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/cluster/connection.h"
#include "cli/verbs.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"

namespace meshtrain::cli {
namespace {

// `code`, but where all went well and what was printed did not arrive: a disk is full.
int Written(int code, const Console& console) {
  console.out.flush();
  if (console.out || code != cluster::kExitDone) return code;
  console.err << "meshtrain: " << CannotPrint().message() << "\n";
  return cluster::ExitCodeOf(CannotPrint());
}

}  // namespace

int RunCommand(int argc, const char* const* argv, const Console& console) {
  // As a plugin of kubectl the same program is called kubectl-meshtrain.
  const std::string_view called = argc > 0 ? argv[0] : "";
  const bool plugin = called.ends_with("kubectl-meshtrain");
  CLI::App app("Trains neural networks on many devices, from one manifest.",
               plugin ? "kubectl meshtrain" : "meshtrain");
  app.footer(ExitCodesHelp());
  app.require_subcommand(1);
  app.set_help_flag("-h,--help", "Print this help and leave");
  app.set_version_flag("--version", MT_VERSION);
  Action chosen;
  AddRun(app, &chosen);
  AddEvaluate(app, &chosen);
  AddPredict(app, &chosen);
  AddGenerate(app, &chosen);
  AddPlan(app, &chosen);
  AddValidate(app, &chosen);
  AddConvert(app, &chosen);
  AddSubmit(app, &chosen);
  AddList(app, &chosen);
  AddStatus(app, &chosen);
  AddLogs(app, &chosen);
  AddEvents(app, &chosen);
  AddSuspend(app, &chosen);
  AddResume(app, &chosen);
  AddScale(app, &chosen);
  AddReport(app, &chosen);
  AddCompletion(app, &chosen);
  AddVersion(app, &chosen);
  // CLI11 would only say that a verb is missing.
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  if (argc > 1 && argv[1][0] != '-' &&
      std::find(verbs.begin(), verbs.end(), argv[1]) == verbs.end()) {
    console.err << "meshtrain: expected one of the verbs " << Join(verbs, ", ")
                << ", got: " << Excerpt(argv[1]) << DidYouMean(argv[1], verbs) << "\n";
    return cluster::kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream said;
    const int code = app.exit(error, console.out, said);
    if (code == 0) return Written(code, console);
    console.err << "meshtrain: " << Printable(said.str());
    return cluster::kExitUsage;
  }
  return Written(chosen(console), console);
}

}  // namespace meshtrain::cli
