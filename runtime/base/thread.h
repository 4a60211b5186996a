// Threads, which a system may have none left to give: a limit of processes (RLIMIT_NPROC, a
// container's pids), or no memory for a stack. std::jthread throws then, where nobody can catch it.
#pragma once

#include <functional>
#include <stop_token>
#include <string_view>
#include <thread>

#include "runtime/base/status.h"

namespace meshtrain {

// Runs `body` on a thread of its own. `what`: who asks, for the message. Errors: kUnavailable, the
// system has no thread to give.
Result<std::jthread> StartThread(std::string_view what, std::function<void(std::stop_token)> body);

}  // namespace meshtrain
