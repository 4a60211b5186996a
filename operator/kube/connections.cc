#include "operator/kube/connections.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <utility>

namespace meshtrain::kube {
namespace {

constexpr Duration kConnectTimeout = std::chrono::seconds(10);

// The first address of a host, as text; "" when it has none.
std::string ResolveAddress(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0 || found == nullptr) return "";
  char text[NI_MAXHOST] = "";
  getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  freeaddrinfo(found);
  return text;
}

}  // namespace

MemoryFile::~MemoryFile() {
  if (fd_ >= 0) close(fd_);
}

Status MemoryFile::Write(std::string_view text) {
  fd_ = memfd_create("meshtrain", MFD_CLOEXEC);
  if (fd_ < 0) return Unavailable("memfd_create: expected a memory file, got: an error");
  while (!text.empty()) {
    const ssize_t n = write(fd_, text.data(), text.size());
    if (n <= 0) return Unavailable("memory file: expected to write it, got: an error");
    text.remove_prefix(static_cast<size_t>(n));
  }
  return OkStatus();
}

Connection::Connection() = default;
Connection::~Connection() = default;

Connections::Connections(const ClientConfig& config, Endpoint endpoint,
                         std::optional<Endpoint> proxy, Clock& clock)
    : config_(config), endpoint_(std::move(endpoint)), proxy_(std::move(proxy)), clock_(clock) {}

Status Connections::Prepare() {
  if (!config_.ca_data.empty()) MT_RETURN_IF_ERROR(ca_.Write(config_.ca_data));
  return OkStatus();
}

Result<std::unique_ptr<Connection>> Connections::Connect(const Credential& credential) const {
  auto connection = std::make_unique<Connection>();
  connection->credential = credential;
  // tls-server-name: the certificate is checked against (and SNI carries) the host we name, so we
  // name that one and map it to the address of the real host.
  const bool renamed = endpoint_.tls && !config_.tls_server_name.empty();
  const std::string host = renamed ? config_.tls_server_name : endpoint_.host;
  if (endpoint_.tls) {
    if (!credential.certificate.empty()) {
      MT_RETURN_IF_ERROR(connection->certificate.Write(credential.certificate));
      MT_RETURN_IF_ERROR(connection->key.Write(credential.key));
    }
    connection->http = NewTlsConnection(host, endpoint_.port, connection->certificate.path(),
                                        connection->key.path(), connection->allowance, clock_);
    connection->http->enable_server_certificate_verification(!config_.insecure_skip_tls_verify);
    const std::string ca = config_.ca_file.empty() ? ca_.path() : config_.ca_file;
    if (!ca.empty()) connection->http->set_ca_cert_path(ca);
  } else {
    connection->http = NewPlainConnection(host, endpoint_.port, connection->allowance, clock_);
  }
  httplib::ClientImpl& http = *connection->http;
  if (!http.is_valid()) {
    return InvalidArgument(
        "client certificate and key: expected a PEM pair that belongs together, got: something "
        "else");
  }
  if (renamed) {
    const std::string address = ResolveAddress(endpoint_.host);
    if (address.empty()) return Unavailable("cannot resolve " + endpoint_.host);
    http.set_hostname_addr_map({{host, address}});
  }
  if (proxy_) http.set_proxy(proxy_->host, proxy_->port);
  http.set_keep_alive(true);
  http.set_tcp_nodelay(true);
  http.set_url_encode(false);
  http.set_follow_location(false);
  http.set_decompress(false);
  http.set_connection_timeout(kConnectTimeout);
  http.set_write_timeout(std::chrono::seconds(30));
  // A peer that vanished without a word is noticed in about a minute, even on a silent watch.
  http.set_socket_options([](socket_t socket) {
    const int on = 1, idle = 30, interval = 10, count = 3;
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  });
  return connection;
}

Result<std::unique_ptr<Connection>> Connections::Take(const Credential& credential) {
  {
    MutexLock lock(mutex_);
    while (!idle_.empty()) {
      std::unique_ptr<Connection> last = std::move(idle_.back());  // the warmest
      idle_.pop_back();
      const bool same = last->credential.certificate == credential.certificate &&
                        last->credential.key == credential.key;
      if (same) return last;
    }
  }
  return Connect(credential);
}

void Connections::GiveBack(std::unique_ptr<Connection> connection) {
  MutexLock lock(mutex_);
  idle_.push_back(std::move(connection));
}

}  // namespace meshtrain::kube
