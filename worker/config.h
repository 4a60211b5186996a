// What a worker process was asked to do, from its arguments and its environment.
#pragma once

#include <string>
#include <variant>

#include "runtime/base/status.h"
#include "runtime/trainer/job/config.h"

namespace meshtrain::worker {

// The configuration, or the exit code of a process that only had to say something (--help, a wrong
// option).
std::variant<trainer::JobConfig, int> ParseArguments(int argc, char** argv);

// "127.0.0.1:8080", ":0", "none". Errors: kInvalidArgument.
Status ParseMetricsAddress(const std::string& text, trainer::JobConfig* config);

}  // namespace meshtrain::worker
