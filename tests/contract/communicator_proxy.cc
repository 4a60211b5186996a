#include "tests/contract/communicator_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "runtime/base/check.h"

namespace meshtrain::collective {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

bool Readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, 20) > 0;
}

}  // namespace

BitFlipper::BitFlipper(int64_t at, bool towards_connector)
    : at_(at), towards_connector_(towards_connector) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  MT_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
           listen(listener_, 64) == 0);
  socklen_t length = sizeof address;
  MT_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  port_ = ntohs(address.sin_port);
  accepting_ = std::jthread([this] {
    std::vector<std::jthread> carriers;
    std::vector<int> fds;
    while (!ends_.load()) {
      if (!Readable(listener_) || target_.load() == 0) continue;
      const int connector = accept(listener_, nullptr, nullptr);
      const int acceptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const sockaddr_in target = Loopback(target_.load());
      if (connector < 0 ||
          connect(acceptor, reinterpret_cast<const sockaddr*>(&target), sizeof target) != 0) {
        close(connector);
        close(acceptor);
        continue;
      }
      fds.push_back(connector);
      fds.push_back(acceptor);
      carriers.emplace_back([this, connector, acceptor] { Carry(connector, acceptor, false); });
      carriers.emplace_back([this, connector, acceptor] { Carry(acceptor, connector, true); });
    }
    carriers.clear();
    for (const int fd : fds) close(fd);
  });
}

BitFlipper::~BitFlipper() {
  ends_.store(true);
  accepting_.join();
  close(listener_);
}

void BitFlipper::Carry(int from, int to, bool towards_connector) {
  std::vector<char> buffer(64 << 10);
  int64_t carried = 0;
  while (!ends_.load()) {
    if (!Readable(from)) continue;
    const ssize_t n = recv(from, buffer.data(), buffer.size(), 0);
    if (n <= 0) break;
    if (towards_connector == towards_connector_ && carried <= at_ && at_ < carried + n &&
        flipped_.fetch_add(1) == 0) {
      buffer[at_ - carried] ^= 4;
    }
    carried += n;
    for (ssize_t sent = 0; sent < n;) {
      const ssize_t k = send(to, buffer.data() + sent, n - sent, MSG_NOSIGNAL);
      if (k <= 0) break;
      sent += k;
    }
  }
  shutdown(to, SHUT_WR);
}

}  // namespace meshtrain::collective
