// Many connections to one port of this machine, none of which ever finishes a request.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::test {

class Flood {
 public:
  // Opens `connections` to 127.0.0.1:port and sends `first` on each, waiting at most 5 s: a server
  // that does not accept them leaves them in its kernel's queue, which is a flood all the same.
  // From then on one that the server has ended comes again within 100 ms.
  static Result<std::unique_ptr<Flood>> Start(int port, int connections, std::string first);
  ~Flood();
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

 private:
  Flood(int port, std::string first) : port_(port), first_(std::move(first)) {}
  struct Peer {
    int fd = -1;
    bool said = false;  // on this connection
    bool ever = false;  // on any
    void Say(const std::string& first);
  };
  // Renews those that have ended, says `first` where it can be said; returns how many have ever
  // said it.
  int64_t Look();

  const int port_;
  const std::string first_;
  std::vector<Peer> peers_;
  std::jthread thread_;  // last
};

// GETs http://127.0.0.1:port/path over a connection of its own, asking for `host`. Errors:
// kUnavailable for no answer within `timeout`, all told.
Result<std::string> Get(int port, const std::string& path, Duration timeout,
                        const std::string& host = "127.0.0.1");

}  // namespace meshtrain::test
