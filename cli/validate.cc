#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/manifest.h"
#include "cli/verbs.h"
#include "runtime/cluster/exit_code.h"

namespace meshtrain::cli {
namespace {

int Validate(const std::string& file) {
  const auto manifest = ReadManifest(file);
  if (!manifest.ok()) {
    PrintError("validate", manifest.status());
    return cluster::ManifestExitCode(manifest.status());
  }
  std::printf("%s: valid\n", file.c_str());
  return 0;
}

}  // namespace

void AddValidate(CLI::App& app, Action* chosen) {
  auto file = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("validate", "Check a manifest: every mistake with its line and column");
  verb->add_option("-f,--file", *file, "The manifest, YAML or JSON")->required();
  verb->callback([file, chosen] { *chosen = [file] { return Validate(*file); }; });
}

}  // namespace meshtrain::cli
