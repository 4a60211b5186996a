// The processes of a job, for tests of what goes on between them: as threads of the test, or as
// children that are really processes, each with a fabric of its own, connected on loopback.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/collective/communicator.h"
#include "runtime/collective/fabric.h"

namespace meshtrain::collective {

// What all of them see, children too.
struct Board {
  static constexpr int kMost = 8;
  struct Row {
    std::atomic<int> port{0};
    std::atomic<int> pid{0};
    char text[1 << 16] = {};  // what the process had to say in the end
  };
  Row rows[kMost];
  std::atomic<int> flags[16]{};  // for the test's own use
  std::atomic<int> done{0};      // bodies that have returned
};

// Waits until `condition`, at most for `timeout`; its last value.
bool WaitUntil(const std::function<bool()>& condition,
               std::chrono::milliseconds timeout = std::chrono::milliseconds(60'000));

struct Member {
  int process = 0;
  int processes = 1;
  Fabric* fabric = nullptr;  // null where there is but one process, without a fabric
  FabricGroup group;         // as connected
  Status connected;
  Board* board = nullptr;
  // A communicator for this process, of a mesh whose devices are dealt out.
  std::function<std::unique_ptr<Communicator>(const mesh::Mesh&)> make;
};

struct ProcessesOptions {
  int processes = 1;
  bool forked = false;  // children instead of threads
  bool shared_memory = true;
  std::vector<std::string> hosts;  // per process; empty: all on one
  std::chrono::milliseconds deadline{60'000};
  std::chrono::milliseconds connect{60'000};
  std::string token = "a secret of the test";
  bool leave_together = true;  // fabrics are kept until all bodies have returned
  bool connected = true;       // bodies begin after Connect; false: they call it
  // Changes what one process is made with, or whom it connects to; ports are known in the second.
  std::function<void(int process, FabricOptions&)> adjust_options;
  std::function<void(int process, FabricGroup&, Board&)> adjust_group;
  // Runs in the test's own process while the others run.
  std::function<void(Board&)> in_parent;
};

// Runs `body` in each process, after Connect (whatever came of it, see Member::connected); gives
// what each returned. "" is meant to say that all went well. A child that dies gives "died of
// signal 9".
std::vector<std::string> RunProcesses(const ProcessesOptions& options,
                                      const std::function<std::string(Member&)>& body);

// "worker-2"
std::string WorkerName(int process);

}  // namespace meshtrain::collective
