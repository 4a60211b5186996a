// What our programs say of arguments that they do not take; for those that read them with CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace meshtrain::cluster {

// Behind the program's name, as every error of ours; for CLI::App::failure_message. One line: it is
// what the status of a pod, and so of a job, tells.
inline std::string UsageError(const CLI::App* program, const CLI::Error& error) {
  return program->get_name() + ": " + error.what() + " (--help tells what there is)\n";
}

}  // namespace meshtrain::cluster
