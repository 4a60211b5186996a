// Keeps a copy of one kind of object up to date: list, then watch from the list's version; a stream
// that ends is taken up where it ended; a version that is gone (410) means list again; failures
// back off 0.8 s, 1.6 s, ... 30 s with jitter, as client-go's reflector does.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "operator/kube/client.h"
#include "runtime/base/clock.h"

namespace meshtrain::control {

// Where what is seen goes. Called on the informer's thread only.
struct Sink {
  std::function<void()> begin_list;
  std::function<void(std::string_view object)> listed;
  std::function<void(int64_t version)> end_list;
  std::function<void(kube::WatchEventType type, int64_t version, std::string_view object)> watched;
};

struct InformerOptions {
  kube::Resource resource;
  std::string ns;  // "" = all
  std::string label_selector;
  // How long an absent kind (404) or a refused one (403) is left alone before the next try.
  Duration absent_retry = std::chrono::seconds(30);
  // Nothing can begin without it, so until its first list an absent one is asked for like one that
  // fails: a chart's definitions and rights come one after another, and the operator beside them.
  bool needed = false;
};

class Informer {
 public:
  Informer(kube::Client& client, Clock& clock, InformerOptions options, Sink sink);

  // Until stop.
  void Run(std::stop_token stop);

  bool needed() const { return options_.needed; }
  // Whether the first list is in. Any thread.
  bool synced() const { return synced_; }
  int64_t lists() const { return lists_; }
  int64_t watches() const { return watches_; }

 private:
  Status ListOnce(std::stop_token stop);

  kube::Client& client_;
  Clock& clock_;
  const InformerOptions options_;
  const Sink sink_;
  std::string version_;  // "" = list first
  std::atomic<bool> synced_{false};
  std::atomic<int64_t> lists_{0}, watches_{0};
};

}  // namespace meshtrain::control
