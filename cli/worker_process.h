// The worker that was built with this command line, started for a verb.
#pragma once

#include <string>
#include <vector>

#include "cli/verbs.h"
#include "runtime/base/status.h"

namespace meshtrain::cli {

// It stands beside this program.
std::string WorkerPath();

// Runs it with these arguments, with our stdout, stderr and environment, until it ends; signals
// that ask us to stop are passed on, SIGHUP as SIGTERM. Its exit code; 129 where a SIGHUP stopped
// it. Errors: local::Process::Start's, as FailedPrecondition where the worker is not there.
Result<int> RunWorker(const std::vector<std::string>& arguments);

}  // namespace meshtrain::cli
