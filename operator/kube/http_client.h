// The Client over HTTP/1.1 and TLS: several kept-alive connections for calls, one connection of its
// own per watch. Requests that the server turned away before acting (429, 503 with Retry-After) are
// sent again after the time it names; reads are also sent again after a lost connection, writes
// never are (the caller plans again from what it sees). No answer is larger than client.h allows,
// or longer under way than its call: bounded_http.h.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "operator/kube/client.h"
#include "operator/kube/config.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::kube {

struct HttpClientOptions {
  int connections = 16;  // also the most requests under way at once
  std::string user_agent = "meshtrain-operator";
  // Asked before the connection of a write is made, and again immediately before each piece of it
  // goes out; an error is returned to the caller instead. This is how a process that lost its lease
  // stops writing, even if it slept while a connection was made.
  std::function<Status()> may_write;
  // After each answer: verb ("GET"), HTTP status ("201", or "<error>" without one), time from send
  // to answer.
  std::function<void(std::string_view verb, std::string_view code, Duration took)> on_request;
  // Time spent waiting for a turn (Pacer) before a request.
  std::function<void(std::string_view verb, Duration waited)> on_wait;
};

// Errors: kInvalidArgument for a server URL, certificate or proxy that cannot be used. Does not
// connect yet. Where SIGPIPE still ends the process, it is ignored from here on.
Result<std::unique_ptr<Client>> NewHttpClient(const ClientConfig& config,
                                              const HttpClientOptions& options, Clock& clock);

}  // namespace meshtrain::kube
