// One process of a job, for the tests that kill and stop processes. Reads TF_CONFIG and the other
// variables of runtime/cluster/contract.h, and PEER_SERVE_PORT, PEER_RETURN_MS, PEER_LOST_AFTER_MS,
// PEER_MAX_FILES (open at a time). Joins; after every loss joins again.
//
// Says, a line each, on stdout:
//   joined ID PROCESS
//   agreed TEXT,TEXT...
//   lost NANOSECONDS STATUS
//   left
//   failed STATUS (of Join; then exits with 1)
// NANOSECONDS: CLOCK_MONOTONIC, which all processes of a host share.
// Hears, a line each, on stdin:   agree NAME TEXT   leave   progress STEP COLLECTIVE [WAITING_AT]
#include <sys/resource.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "runtime/base/mutex.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"
#include "runtime/membership/membership.h"

namespace meshtrain::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::optional<std::string> Variable(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

void Say(const std::string& line) { std::cout << line << std::endl; }

// What wakes the main thread: a loss, or the test's wish.
struct Events {
  Mutex mutex;
  CondVar changed;
  bool lost MT_GUARDED_BY(mutex) = false;
  bool leave MT_GUARDED_BY(mutex) = false;
  bool ended MT_GUARDED_BY(mutex) = false;  // nobody wishes anything any more
};

void Listen(Membership& membership, Events& events) {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "agree") {
      std::string name, text;
      words >> name >> text;
      const auto texts = membership.Agree(name, text, seconds(60), {});
      Say(texts.ok() ? "agreed " + Join(*texts, ",") : "disagreed " + texts.status().ToString());
    } else if (verb == "progress") {
      int64_t step = 0;
      uint64_t collective = 0;
      std::string at;
      words >> step >> collective;
      std::getline(words >> std::ws, at);
      membership.ReportProgress(step, collective, at);
    } else if (verb == "leave") {
      MutexLock lock(events.mutex);
      events.leave = true;
      events.changed.NotifyAll();
    }
  }
  MutexLock lock(events.mutex);
  events.ended = true;
  events.changed.NotifyAll();
}

int Main() {
  if (const auto files = ParseInt(Variable("PEER_MAX_FILES").value_or(""))) {
    const rlimit limit{static_cast<rlim_t>(*files), static_cast<rlim_t>(*files)};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
  }
  auto config = cluster::ParseTfConfig(Variable(cluster::kEnvTfConfig).value_or(""));
  auto security = rpc::SecurityFromEnvironment(Variable);
  if (!config.ok() || !security.ok()) {
    Say("failed " + (config.ok() ? security.status() : config.status()).ToString());
    return 1;
  }
  MembershipOptions options{.config = std::move(*config),
                            .security = std::move(*security),
                            .job = Variable(cluster::kEnvJob).value_or(""),
                            .data_address = "127.0.0.1:1",
                            .host = "here"};
  options.serve_port =
      static_cast<int>(ParseInt(Variable("PEER_SERVE_PORT").value_or("0")).value_or(0));
  options.join_timeout = seconds(60);
  options.peer_return =
      milliseconds(ParseInt(Variable("PEER_RETURN_MS").value_or("60000")).value_or(0));
  if (const auto lost_after = ParseInt(Variable("PEER_LOST_AFTER_MS").value_or(""))) {
    options.lost_after = milliseconds(*lost_after);
  }
  auto membership = Membership::Create(std::move(options));
  if (!membership.ok()) {
    Say("failed " + membership.status().ToString());
    return 1;
  }
  Events events;
  (*membership)->OnLost([&events](const Status& why) {
    Say("lost " + std::to_string(SystemClock().Monotonic().count()) + " " + why.ToString());
    MutexLock lock(events.mutex);
    events.lost = true;
    events.changed.NotifyAll();
  });
  const std::jthread listening([&] { Listen(**membership, events); });
  for (;;) {
    const auto joined = (*membership)->Join(0, {});
    if (!joined.ok()) {
      Say("failed " + joined.status().ToString());
      std::_Exit(1);  // the other thread reads on
    }
    Say("joined " + std::to_string(joined->id) + " " + std::to_string(joined->process));
    MutexLock lock(events.mutex);
    while (!events.changed.WaitFor(events.mutex, {}, std::chrono::hours(1),
                                   [&] { return events.lost || events.leave || events.ended; })) {
    }
    if (events.leave || events.ended) break;
    events.lost = false;
  }
  const Status left = (*membership)->Leave(seconds(60));
  Say(left.ok() ? "left" : "failed " + left.ToString());
  std::_Exit(left.ok() ? 0 : 1);
}

}  // namespace
}  // namespace meshtrain::membership

int main() { return meshtrain::membership::Main(); }
