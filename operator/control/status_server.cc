#include "operator/control/status_server.h"

#include <httplib.h>

#include <chrono>
#include <thread>

#include "runtime/base/text.h"

namespace meshtrain::control {

struct StatusServer::Impl {
  httplib::Server server;
  int port = 0;
  std::thread thread;
};

StatusServer::StatusServer() : impl_(std::make_unique<Impl>()) {}

StatusServer::~StatusServer() {
  impl_->server.stop();
  if (impl_->thread.joinable()) impl_->thread.join();
}

int StatusServer::port() const { return impl_->port; }

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
  if (host.empty()) host = "0.0.0.0";

  auto out = std::unique_ptr<StatusServer>(new StatusServer);
  Impl& impl = *out->impl_;
  // Two threads serve a scrape beside a probe; the library would start one per core, eight at
  // least.
  impl.server.new_task_queue = [] { return new httplib::ThreadPool(2); };
  impl.server.set_keep_alive_max_count(1);
  impl.server.set_payload_max_length(4096);
  impl.server.Get("/metrics", [handlers](const httplib::Request&, httplib::Response& response) {
    response.set_content(handlers.metrics(), "text/plain; version=0.0.4; charset=utf-8");
  });
  const auto probe = [](const std::function<Status()>& check) {
    return [check](const httplib::Request&, httplib::Response& response) {
      const Status status = check();
      response.status = status.ok() ? 200 : 503;
      response.set_content(status.ok() ? "ok\n" : status.message() + "\n", "text/plain");
    };
  };
  impl.server.Get("/healthz", probe(handlers.healthy));
  impl.server.Get("/readyz", probe(handlers.ready));
  impl.port = *port == 0 ? impl.server.bind_to_any_port(host)
                         : (impl.server.bind_to_port(host, static_cast<int>(*port))
                                ? static_cast<int>(*port)
                                : -1);
  if (impl.port <= 0) {
    return Unavailable("metrics address: expected a free one, got: " + address + " (in use)");
  }
  impl.thread = std::thread([&impl] { impl.server.listen_after_bind(); });
  // The library ignores a stop before its loop has begun.
  while (!impl.server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return out;
}

}  // namespace meshtrain::control
