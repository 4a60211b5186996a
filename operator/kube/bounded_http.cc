#include "operator/kube/bounded_http.h"

#include <httplib.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <string_view>

namespace meshtrain::kube {
namespace {

// Counts what another stream reads, and asks before it writes.
class BoundedStream : public httplib::Stream {
 public:
  BoundedStream(httplib::Stream& inner, Allowance& allowance, Clock& clock)
      : inner_(inner), allowance_(allowance), clock_(clock) {}

  bool is_readable() const override { return !ahead_.empty() || inner_.is_readable(); }
  bool is_writable() const override { return inner_.is_writable(); }
  ssize_t read(char* to, size_t size) override {
    if (allowance_.left == 0) allowance_.spent = true;
    if (allowance_.spent) return -1;
    if (ahead_.empty()) {
      if (clock_.Monotonic() >= allowance_.until) return -1;
      // The library reads heads byte by byte.
      const ssize_t n = inner_.read(buffer_, std::min(sizeof buffer_, allowance_.left));
      if (n <= 0) return n;
      ahead_ = {buffer_, static_cast<size_t>(n)};
    }
    const size_t n = ahead_.copy(to, std::min(size, allowance_.left));
    ahead_.remove_prefix(n);
    allowance_.left -= n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, size_t size) override {
    if (allowance_.may_send && allowance_.withheld.ok()) {
      allowance_.withheld = allowance_.may_send();
    }
    return allowance_.withheld.ok() ? inner_.write(from, size) : -1;
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    inner_.get_remote_ip_and_port(ip, port);
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    inner_.get_local_ip_and_port(ip, port);
  }
  socket_t socket() const override { return inner_.socket(); }

 private:
  httplib::Stream& inner_;
  Allowance& allowance_;
  Clock& clock_;
  char buffer_[4096];
  std::string_view ahead_;  // of it, what nobody has read yet
};

// TLS over a connected socket. The library has the like, but keeps it to itself.
class TlsStream : public httplib::Stream {
 public:
  TlsStream(socket_t socket, SSL* ssl, std::chrono::microseconds read_timeout,
            std::chrono::microseconds write_timeout)
      : socket_(socket), ssl_(ssl), read_timeout_(read_timeout), write_timeout_(write_timeout) {
    SSL_clear_mode(ssl, SSL_MODE_AUTO_RETRY);
  }

  bool is_readable() const override { return SSL_pending(ssl_) > 0 || Wait(POLLIN, read_timeout_); }
  bool is_writable() const override { return Wait(POLLOUT, write_timeout_); }
  ssize_t read(char* to, size_t size) override {
    while (is_readable()) {
      const int n = SSL_read(ssl_, to, Short(size));
      if (n > 0) return n;
      const int error = SSL_get_error(ssl_, n);
      if (error == SSL_ERROR_ZERO_RETURN) return 0;
      // A record that is not whole yet, or a key update.
      if (error != SSL_ERROR_WANT_READ) return -1;
    }
    return -1;
  }
  ssize_t write(const char* from, size_t size) override {
    while (is_writable()) {
      const int n = SSL_write(ssl_, from, Short(size));
      if (n > 0) return n;
      if (SSL_get_error(ssl_, n) != SSL_ERROR_WANT_WRITE) return -1;
    }
    return -1;
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  socket_t socket() const override { return socket_; }

 private:
  static int Short(size_t size) {
    return static_cast<int>(std::min<size_t>(size, std::numeric_limits<int>::max()));
  }
  bool Wait(short events, std::chrono::microseconds timeout) const {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (true) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      pollfd waiting{.fd = socket_, .events = events, .revents = 0};
      const int ready = ::poll(
          &waiting, 1,
          static_cast<int>(std::min<int64_t>(left.count(), std::numeric_limits<int>::max())));
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
    }
  }

  const socket_t socket_;
  SSL* const ssl_;
  const std::chrono::microseconds read_timeout_, write_timeout_;
};

std::chrono::microseconds Timeout(time_t seconds, time_t micros) {
  return std::chrono::seconds(seconds) + std::chrono::microseconds(micros);
}

class PlainConnection final : public httplib::ClientImpl {
 public:
  PlainConnection(const std::string& host, int port, Allowance& allowance, Clock& clock)
      : ClientImpl(host, port), allowance_(allowance), clock_(clock) {}

 private:
  bool process_socket(const Socket& socket,
                      std::function<bool(httplib::Stream&)> callback) override {
    return httplib::detail::process_client_socket(
        socket.sock, read_timeout_sec_, read_timeout_usec_, write_timeout_sec_, write_timeout_usec_,
        [&](httplib::Stream& stream) {
          BoundedStream bounded(stream, allowance_, clock_);
          return callback(bounded);
        });
  }
  Allowance& allowance_;
  Clock& clock_;
};

class TlsConnection final : public httplib::SSLClient {
 public:
  TlsConnection(const std::string& host, int port, const std::string& certificate,
                const std::string& key, Allowance& allowance, Clock& clock)
      : SSLClient(host, port, certificate, key), allowance_(allowance), clock_(clock) {}

 private:
  bool process_socket(const Socket& socket,
                      std::function<bool(httplib::Stream&)> callback) override {
    TlsStream stream(socket.sock, socket.ssl, Timeout(read_timeout_sec_, read_timeout_usec_),
                     Timeout(write_timeout_sec_, write_timeout_usec_));
    BoundedStream bounded(stream, allowance_, clock_);
    return callback(bounded);
  }
  Allowance& allowance_;
  Clock& clock_;
};

}  // namespace

std::unique_ptr<httplib::ClientImpl> NewPlainConnection(const std::string& host, int port,
                                                        Allowance& allowance, Clock& clock) {
  return std::make_unique<PlainConnection>(host, port, allowance, clock);
}

std::unique_ptr<httplib::ClientImpl> NewTlsConnection(const std::string& host, int port,
                                                      const std::string& certificate,
                                                      const std::string& key, Allowance& allowance,
                                                      Clock& clock) {
  return std::make_unique<TlsConnection>(host, port, certificate, key, allowance, clock);
}

}  // namespace meshtrain::kube
