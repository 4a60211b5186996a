#include "operator/control/status_server.h"

#include <optional>
#include <string_view>

#include "runtime/base/text.h"

namespace meshtrain::control {
namespace {

std::function<telemetry::HttpAnswer()> Probe(std::function<Status()> check) {
  return [check = std::move(check)]() -> telemetry::HttpAnswer {
    const Status status = check();
    return {.status = status.ok() ? 200 : 503,
            .type = "text/plain",
            .body = status.ok() ? "ok\n" : status.message() + "\n"};
  };
}

}  // namespace

Result<std::unique_ptr<StatusServer>> StatusServer::Start(const std::string& address,
                                                          Handlers handlers) {
  const size_t colon = address.rfind(':');
  const auto port = colon == std::string::npos
                        ? std::nullopt
                        : ParseInt(std::string_view(address).substr(colon + 1));
  if (!port || *port < 0 || *port > 65535) {
    return InvalidArgument("metrics address: expected HOST:PORT or :PORT, got: " + address);
  }
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);

  telemetry::HttpServer::Pages pages;
  pages["/metrics"] = [metrics = std::move(handlers.metrics)]() -> telemetry::HttpAnswer {
    return {.status = 200, .type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics()};
  };
  pages["/healthz"] = Probe(std::move(handlers.healthy));
  pages["/readyz"] = Probe(std::move(handlers.ready));
  // Without a host: every address of both families; of IPv4 alone where the kernel has no other.
  const bool any = host.empty();
  auto server = telemetry::HttpServer::Start(any ? "::" : host, static_cast<int>(*port), pages);
  if (any && !server.ok()) {
    server = telemetry::HttpServer::Start("0.0.0.0", static_cast<int>(*port), std::move(pages));
  }
  if (!server.ok()) return Unavailable("metrics address: " + server.status().message());
  return std::unique_ptr<StatusServer>(new StatusServer(*std::move(server)));
}

}  // namespace meshtrain::control
