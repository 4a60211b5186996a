// One bounded read of a process's /progress. The process is the user's: it may drip bytes, send
// headers without end or never answer, so neither the time nor the bytes of the whole exchange are
// left to it.
#pragma once

#include <stop_token>
#include <string>

#include "runtime/base/status.h"

namespace meshtrain::telemetry {

// GET http://IP:PORT/progress: the body, of at most 64 KiB, or why there is none (kUnavailable,
// with the address). Ends within 2 s, and within 0.1 s of `stop` (kCancelled). Asked as HTTP/1.0,
// so that the answer is not chunked and ends with the connection; follows no redirect. `ip`: an
// IPv4 or IPv6 address; names are not looked up.
Result<std::string> FetchProgress(const std::string& ip, int port, std::stop_token stop);

}  // namespace meshtrain::telemetry
