// The operator's own small HTTP server: /metrics, /healthz (the process lives), /readyz (it leads
// and has seen the cluster, or stands by for the leader).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/base/status.h"

namespace meshtrain::control {

class StatusServer {
 public:
  struct Handlers {
    std::function<std::string()> metrics;
    std::function<Status()> healthy, ready;
  };
  // `address` is "HOST:PORT" or ":PORT"; port 0 takes a free one.
  // Errors: kInvalidArgument, kUnavailable where the port is taken.
  static Result<std::unique_ptr<StatusServer>> Start(const std::string& address, Handlers handlers);
  ~StatusServer();

  int port() const;

 private:
  StatusServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::control
