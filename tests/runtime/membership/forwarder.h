// A piece of network between processes of the loopback: a port that leads to another, and where it
// leads can change; what passes can be held up in either direction.
#pragma once

#include <list>
#include <thread>

#include "runtime/base/mutex.h"

namespace meshtrain::membership {

class Forwarder {
 public:
  // Listens at `port`, and leads to `target`; both of 127.0.0.1.
  Forwarder(int port, int target);
  ~Forwarder();
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  // For connections from now on; those that are there stay.
  void Lead(int target);
  // Bytes wait, and nobody is told.
  void Block(bool to_target, bool to_caller);
  // Every connection is closed on both sides.
  void Cut();

 private:
  struct Pair {
    int caller = -1;
    int target = -1;
    // Read from one, not yet taken by the other.
    std::string to_target, to_caller;
    bool over = false;
  };
  void Run(std::stop_token stop);
  void Accept();
  static void Move(int from, int to, std::string& waiting, bool readable, bool& over);

  int listener_ = -1;
  int wake_ = -1;
  std::list<Pair> pairs_;  // of the thread
  Mutex mutex_;
  int target_ MT_GUARDED_BY(mutex_);
  bool block_to_target_ MT_GUARDED_BY(mutex_) = false;
  bool block_to_caller_ MT_GUARDED_BY(mutex_) = false;
  bool cut_ MT_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace meshtrain::membership
