#include "runtime/telemetry/endpoints.h"

#include <string_view>
#include <utility>

#include "runtime/telemetry/host_names.h"

namespace meshtrain::telemetry {
namespace {

std::function<HttpAnswer()> Text(std::function<std::string()> handler, const char* type) {
  return [handler = std::move(handler), type]() -> HttpAnswer {
    return {.status = 200, .type = type, .body = handler()};
  };
}

std::function<HttpAnswer()> Check(std::function<bool()> handler) {
  return [handler = std::move(handler)]() -> HttpAnswer {
    const bool good = !handler || handler();
    return {.status = good ? 200 : 503, .type = "text/plain", .body = good ? "ok\n" : "no\n"};
  };
}

}  // namespace

Endpoints::Endpoints(std::unique_ptr<HttpServer> server) : server_(std::move(server)) {}
Endpoints::~Endpoints() = default;

Result<std::unique_ptr<Endpoints>> Endpoints::Start(const EndpointsOptions& options,
                                                    EndpointHandlers handlers) {
  HttpServer::Pages pages;
  const auto text = [&](const char* path, std::function<std::string()> handler, const char* type) {
    if (handler) pages[path] = Text(std::move(handler), type);
  };
  text("/metrics", std::move(handlers.metrics), "text/plain; version=0.0.4; charset=utf-8");
  text("/progress", std::move(handlers.progress), "application/json");
  text("/", std::move(handlers.page), "text/html; charset=utf-8");
  text("/run.json", std::move(handlers.run), "application/json");
  pages["/healthz"] = Check(std::move(handlers.healthy));
  pages["/readyz"] = Check(std::move(handlers.ready));
  const auto gate = [names = options.names](std::string_view path, std::string_view host) {
    return path == "/healthz" || path == "/readyz" || IsOwnHost(host, names);
  };
  MT_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpServer> server,
      HttpServer::Start(options.host, options.port, std::move(pages), SystemClock(), gate));
  return std::unique_ptr<Endpoints>(new Endpoints(std::move(server)));
}

int Endpoints::port() const { return server_->port(); }
Status Endpoints::Stop(Duration timeout) { return server_->Stop(timeout); }

}  // namespace meshtrain::telemetry
