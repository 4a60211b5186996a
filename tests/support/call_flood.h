// Calls of a gRPC method that never finish: each sends all of its message but the last byte, as
// fast as the server lets it, and then waits. HTTP/2 spoken by hand (RFC 9113), since gRPC's own
// client sends whole messages only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"

namespace meshtrain::test {

struct CallFloodOptions {
  int port = 0;        // at 127.0.0.1
  std::string method;  // "/package.Service/Method"
  std::vector<std::pair<std::string, std::string>> metadata;
  int connections = 10;
  int calls_per_connection = 150;  // at a time, where the server allows them
  size_t message_bytes = size_t{2} << 20;
};

class CallFlood {
 public:
  // Begins. From then on a call, or connection, that the server has ended comes anew.
  explicit CallFlood(CallFloodOptions options);
  ~CallFlood();
  CallFlood(const CallFlood&) = delete;
  CallFlood& operator=(const CallFlood&) = delete;

  // Waits until so many calls are through: ended by the server, or with all sent but the last byte.
  bool WaitForCalls(int64_t calls, Duration patience);
  int64_t calls_ended() const { return ended_; }  // by the server
  int64_t calls_full() const { return full_; }    // that wait for their last byte
  int64_t bytes_sent() const { return bytes_; }   // of messages
  int64_t connections_ended() const { return cut_; }

 private:
  class Connection;
  void Run(std::stop_token stop);
  void Through(std::atomic<int64_t>& kind);

  const CallFloodOptions options_;
  std::atomic<int64_t> ended_ = 0, full_ = 0, bytes_ = 0, cut_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::jthread thread_;  // last
};

}  // namespace meshtrain::test
