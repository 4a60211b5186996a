#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cli/trained.h"
#include "cli/verbs.h"
#include "runtime/base/text.h"

namespace meshtrain::cli {
namespace {

struct GenerateFlags {
  TrainedFlags trained;
  std::optional<std::string> prompt, length, temperature, seed;  // none: the manifest's
  std::string output = "-";
};

}  // namespace

void AddGenerate(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* verb = app.add_subcommand("generate",
                                      "Write text with a trained model of characters; what is not "
                                      "given is the manifest's generate");
  AddTrainedFlags(verb, &flags->trained);
  verb->add_option("--prompt", flags->prompt, "What the text begins with")
      ->check([](const std::string& text) -> std::string {
        return text.empty() ? "expected at least one character, got: none" : "";
      });
  verb->add_option("--length", flags->length, "Characters to write behind the prompt")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb->add_option("--temperature", flags->temperature,
                   "0: always the likeliest character; else one is drawn by its probability")
      ->check([](const std::string& text) -> std::string {
        const std::optional<double> number = ParseDouble(text);
        if (number && *number >= 0 && *number <= 1e6) return "";  // as the manifest's
        return "expected a number from 0 to 1e6, got: " + Excerpt(text);
      });
  verb->add_option("--seed", flags->seed, "What is drawn follows from it")
      ->check([](const std::string& text) -> std::string {
        if (ParseInt(text)) return "";
        return "expected a whole number, got: " + Excerpt(text);
      });
  verb->add_option("-o,--output", flags->output,
                   "A file that is not there yet; -: stdout (the default)");
  verb->callback([flags, chosen] {
    *chosen = [flags](const Console& console) {
      std::vector<std::string> more = {"--output=" + flags->output};
      const auto add = [&more](const char* name, const std::optional<std::string>& value) {
        if (value) more.push_back(name + *value);
      };
      add("--prompt=", flags->prompt);
      add("--length=", flags->length);
      add("--temperature=", flags->temperature);
      add("--seed=", flags->seed);
      return RunTrained("generate", flags->trained, more, console);
    };
  });
}

}  // namespace meshtrain::cli
