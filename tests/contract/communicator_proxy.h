// A TCP proxy between two processes of a test, which spoils one bit of what it carries.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace meshtrain::collective {

class BitFlipper {
 public:
  // Flips one bit of byte `at` of what the listening side sends (`towards_connector`) or receives,
  // on the first connection that carries so many bytes. Listens at once; forwards to `target`,
  // which may be set later.
  BitFlipper(int64_t at, bool towards_connector);
  ~BitFlipper();

  int port() const { return port_; }
  void Target(int port) { target_.store(port); }
  int flipped() const { return flipped_.load(); }

 private:
  void Carry(int from, int to, bool towards_connector);

  const int64_t at_;
  const bool towards_connector_;
  int listener_ = -1, port_ = 0;
  std::atomic<int> target_{0};
  std::atomic<int> flipped_{0};
  std::atomic<bool> ends_{false};
  std::jthread accepting_;
};

}  // namespace meshtrain::collective
