// What our programs say of arguments that they do not take; for those that read them with CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace meshtrain::cluster {

// Behind the program's name, as every error of ours; for CLI::App::failure_message.
inline std::string UsageError(const CLI::App* program, const CLI::Error& error) {
  return program->get_name() + ": " + CLI::FailureMessage::simple(program, error);
}

}  // namespace meshtrain::cluster
