// The operator's own small HTTP server: /metrics, /healthz (its work moves on), /readyz (it leads
// and has seen the cluster, or stands by for the leader). A probe is answered whatever else
// connects: runtime/telemetry/http_server.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/telemetry/http_server.h"

namespace meshtrain::control {

class StatusServer {
 public:
  // Called by the server's thread, one at a time; none may block.
  struct Handlers {
    std::function<std::string()> metrics;
    std::function<Status()> healthy, ready;
  };
  // `address` is "HOST:PORT" or ":PORT", which is every address of the host, be it of IPv4, IPv6 or
  // both; port 0 takes a free one.
  // Errors: kInvalidArgument, kUnavailable where the port is taken.
  static Result<std::unique_ptr<StatusServer>> Start(const std::string& address, Handlers handlers);

  int port() const { return server_->port(); }

 private:
  explicit StatusServer(std::unique_ptr<telemetry::HttpServer> server)
      : server_(std::move(server)) {}
  std::unique_ptr<telemetry::HttpServer> server_;
};

}  // namespace meshtrain::control
