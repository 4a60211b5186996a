// A process that a test starts, talks to line by line, stops and kills. It is killed when this
// goes.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"

namespace meshtrain::membership {

class PeerProcess {
 public:
  // Starts `program` with these variables besides the test's own, and stderr to `log`.
  PeerProcess(const std::string& program, const std::map<std::string, std::string>& environment,
              const std::string& log);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // The next line that begins with `start`; lines before it are passed over. Nothing when time is
  // up or it ended.
  std::optional<std::string> Expect(const std::string& start,
                                    Duration patience = std::chrono::seconds(60));
  void Tell(const std::string& line);
  void Signal(int signal);
  pid_t pid() const { return pid_; }
  // Its exit code, or 128 + signal; nothing when time is up.
  std::optional<int> Wait(Duration patience = std::chrono::seconds(60));

 private:
  pid_t pid_ = -1;
  int in_ = -1;   // what it reads
  int out_ = -1;  // what it writes
  std::string unread_;
  std::optional<int> exit_;
};

}  // namespace meshtrain::membership
