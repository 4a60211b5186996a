// A request to a process's web server, over a connection as anybody's: it is answered in HTTP, or
// the connection ends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "runtime/telemetry/http_server.h"
#include "tests/fuzz/fuzz.h"

using namespace meshtrain;

namespace {

telemetry::HttpServer& TheServer() {
  static const auto server = telemetry::HttpServer::Start(
      "127.0.0.1", 0,
      {{"/", [] { return telemetry::HttpAnswer{.type = "text/html", .body = "page"}; }},
       {"/metrics", [] { return telemetry::HttpAnswer{.type = "text/plain", .body = "1"}; }}});
  FUZZ_CHECK(server.ok());
  return **server;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  FUZZ_CHECK(fd >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(TheServer().port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  FUZZ_CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  // The port is free again at once: there are many requests a second.
  const linger now{.l_onoff = 1, .l_linger = 0};
  FUZZ_CHECK(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
  std::string_view request = fuzz::TextOf(data, size);
  while (!request.empty()) {
    const ssize_t n = ::send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    if (n <= 0) break;  // it has heard enough
    request.remove_prefix(static_cast<size_t>(n));
  }
  (void)::shutdown(fd, SHUT_WR);
  std::string answer;
  char block[4096];
  for (ssize_t n; (n = ::recv(fd, block, sizeof block, 0)) > 0;) {
    answer.append(block, static_cast<size_t>(n));
  }
  ::close(fd);
  FUZZ_CHECK(answer.empty() || answer.starts_with("HTTP/1."));
  return 0;
}
