// A worker's pages: /metrics, /healthz, /readyz, /progress and, where there is one, a page at /
// with the document that it draws at /run.json. What a probe or a scrape may rely on whatever else
// connects: runtime/telemetry/http_server.h. Who asks for anything but a probe under a host name
// that is not the process's own gets 421.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/telemetry/http_server.h"

namespace meshtrain::telemetry {

struct EndpointsOptions {
  std::string host = "127.0.0.1";  // "0.0.0.0" in a pod
  int port = 0;                    // 0: any free one
  // Host names by which the process is asked, in lower case (host_names.h). Probes may use any.
  std::set<std::string, std::less<>> names = {};
};

// Called by the server's thread, one at a time; none may block. An absent one answers 404,
// absent `healthy` and `ready` answer 200.
struct EndpointHandlers {
  std::function<std::string()> metrics;   // Prometheus text
  std::function<std::string()> progress;  // JSON
  std::function<bool()> healthy;          // false: 503
  std::function<bool()> ready;            // false: 503
  std::function<std::string()> page;      // HTML
  std::function<std::string()> run;       // JSON
};

class Endpoints {
 public:
  // Errors: kUnavailable when the address cannot be bound (of
  // Origin::kPeers where the port is taken).
  static Result<std::unique_ptr<Endpoints>> Start(const EndpointsOptions& options,
                                                  EndpointHandlers handlers);
  // Stops; waits for requests in progress, each of which ends within seconds.
  ~Endpoints();
  Endpoints(const Endpoints&) = delete;
  Endpoints& operator=(const Endpoints&) = delete;

  int port() const;
  // Takes no more requests and waits for those in progress. Errors: kDeadlineExceeded; then they
  // still run.
  Status Stop(Duration timeout = std::chrono::seconds(5));

 private:
  explicit Endpoints(std::unique_ptr<HttpServer> server);
  std::unique_ptr<HttpServer> server_;
};

}  // namespace meshtrain::telemetry
