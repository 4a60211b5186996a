// Completion scripts, made of the parser's own verbs and flags, so that none is forgotten.
#include <CLI/CLI.hpp>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "runtime/base/text.h"

namespace meshtrain::cli {
namespace {

struct Flag {
  std::string spelling;  // "--file"
  std::string about;
};
struct Verb {
  std::string name, about;
  std::vector<Flag> flags;
  bool takes_job = false;  // its words are names of jobs
};

std::string FirstSentence(const std::string& text) { return text.substr(0, text.find(';')); }

std::vector<Verb> VerbsOf(const CLI::App& app) {
  std::vector<Verb> verbs;
  for (const CLI::App* sub : app.get_subcommands({})) {
    Verb verb{.name = sub->get_name(), .about = FirstSentence(sub->get_description()), .flags = {}};
    for (const CLI::Option* option : sub->get_options()) {
      for (const std::string& name : option->get_snames()) {
        verb.flags.push_back({"-" + name, FirstSentence(option->get_description())});
      }
      for (const std::string& name : option->get_lnames()) {
        verb.flags.push_back({"--" + name, FirstSentence(option->get_description())});
      }
      const std::string& word = option->get_single_name();
      if (word == "job" || word == "jobs") verb.takes_job = true;
    }
    verbs.push_back(std::move(verb));
  }
  return verbs;
}

std::string Names(const std::vector<Verb>& verbs) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs) names.push_back(verb.name);
  return Join(names, " ");
}

std::string Spellings(const Verb& verb) {
  std::vector<std::string> names;
  for (const Flag& flag : verb.flags) names.push_back(flag.spelling);
  return Join(names, " ");
}

// Whether the value of a flag is a file or a folder.
bool TakesPath(const std::string& flag) {
  for (const char* path : {"file", "f", "from", "input", "i", "data"}) {
    if (flag == path) return true;
  }
  return false;
}

constexpr const char* kJobs = "meshtrain list -q -o name 2>/dev/null | sed 's,.*/,,'";

std::string Bash(const std::vector<Verb>& verbs) {
  std::string out =
      "# meshtrain's completion for bash: source <(meshtrain completion bash)\n"
      "_meshtrain() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W '" +
      Names(verbs) +
      "' -- \"$word\"))\n"
      "    return\n"
      "  fi\n"
      "  case $before in\n"
      "    -f|--file|--kubeconfig|--from|-i|--input|--data) COMPREPLY=($(compgen -f -- "
      "\"$word\")); return ;;\n"
      "  esac\n"
      "  local flags= jobs=\n"
      "  case ${COMP_WORDS[1]} in\n";
  for (const Verb& verb : verbs) {
    out += "    " + verb.name + ") flags='" + Spellings(verb) + "'" +
           (verb.takes_job ? " jobs=1" : "") + " ;;\n";
  }
  out += std::string(
             "  esac\n"
             "  if [[ $word == -* ]]; then\n"
             "    COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
             "  elif [ -n \"$jobs\" ]; then\n"
             "    COMPREPLY=($(compgen -W \"$(") +
         kJobs +
         ")\" -- \"$word\"))\n"
         "  elif [ \"${COMP_WORDS[1]}\" = completion ]; then\n"
         "    COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$word\"))\n"
         "  fi\n"
         "}\n"
         "complete -o default -F _meshtrain meshtrain\n";
  return out;
}

// Within single quotes of a shell.
std::string Quoted(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Zsh(const std::vector<Verb>& verbs) {
  std::string out =
      "#compdef meshtrain\n"
      "# meshtrain's completion for zsh: source <(meshtrain completion zsh)\n"
      "_meshtrain() {\n"
      "  local -a verbs flags\n"
      "  verbs=(\n";
  for (const Verb& verb : verbs) out += "    '" + verb.name + ":" + Quoted(verb.about) + "'\n";
  out +=
      "  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe verb verbs\n"
      "    return\n"
      "  fi\n"
      "  local jobs=\n"
      "  case $words[2] in\n";
  for (const Verb& verb : verbs) {
    out += "    " + verb.name + ") flags=(" + Spellings(verb) + ")" +
           (verb.takes_job ? "; jobs=1" : "") + " ;;\n";
  }
  out += std::string(
             "  esac\n"
             "  if [[ $words[CURRENT] == -* ]]; then\n"
             "    compadd -- $flags\n"
             "  elif [[ -n $jobs ]]; then\n"
             "    compadd -- ${(f)\"$(") +
         kJobs +
         ")\"}\n"
         "  else\n"
         "    _files\n"
         "  fi\n"
         "}\n"
         "compdef _meshtrain meshtrain\n";
  return out;
}

std::string Fish(const std::vector<Verb>& verbs) {
  std::string out =
      "# meshtrain's completion for fish: meshtrain completion fish | source\n"
      "complete -c meshtrain -f\n";
  for (const Verb& verb : verbs) {
    out += "complete -c meshtrain -n __fish_use_subcommand -a " + verb.name + " -d '" +
           Quoted(verb.about) + "'\n";
    const std::string when =
        "complete -c meshtrain -n '__fish_seen_subcommand_from " + verb.name + "'";
    for (const Flag& flag : verb.flags) {
      const bool is_long = flag.spelling.starts_with("--");
      const std::string word = flag.spelling.substr(is_long ? 2 : 1);
      out += when + (is_long ? " -l " : " -s ") + word + (TakesPath(word) ? " -r -F" : "") +
             " -d '" + Quoted(flag.about) + "'\n";
    }
    if (verb.takes_job) out += when + " -a \"(" + kJobs + ")\"\n";
  }
  return out;
}

}  // namespace

void AddCompletion(CLI::App& app, Action* chosen) {
  auto shell = std::make_shared<std::string>();
  CLI::App* verb =
      app.add_subcommand("completion", "Print the completion script of a shell: bash, zsh or fish");
  verb->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  verb->callback([shell, chosen, &app] {
    // The parser is gone when the action runs.
    const std::vector<Verb> verbs = VerbsOf(app);
    *chosen = [shell, verbs](const Console& console) {
      console.out << (*shell == "bash" ? Bash(verbs) : *shell == "zsh" ? Zsh(verbs) : Fish(verbs));
      return 0;
    };
  });
}

}  // namespace meshtrain::cli
