// Keeps a copy of one kind of object up to date: list, then watch from the list's version; a stream
// that ends is taken up where it ended; a version that is gone (410) means list again; failures
// back off 0.8 s, 1.6 s, ... 30 s with jitter, as client-go's reflector does.
//
// An etcd may be restored to an older revision. A watch from a version that is yet to come would
// then stay silent, and one from a version that came a second time would miss what came before it.
// So after a stream that broke off, the server is asked for its present version, and a server that
// was away is listed anew: both list with `anew` where the versions cannot be trusted. One kind
// that finds this out puts the others in doubt (Doubt), since they may know what will not have
// been: until each has asked as well, none of them is sure.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "operator/kube/client.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"

namespace meshtrain::control {

// Where what is seen goes. Called on the informer's thread only.
struct Sink {
  std::function<void()> begin_list;
  std::function<void(std::string_view object)> listed;
  // `anew`: versions from before this list mean nothing any more (cache.h).
  std::function<void(int64_t version, bool anew)> end_list;
  std::function<void(kube::WatchEventType type, int64_t version, std::string_view object)> watched;
  // The server may not be where it was, for other kinds too. Before the list anew.
  std::function<void()> in_doubt;
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

  const std::string& kind() const { return options_.resource.plural; }
  const std::string& ns() const { return options_.ns; }
  bool needed() const { return options_.needed; }
  // Whether the first list is in. Any thread.
  bool synced() const { return synced_; }
  // The server may not be where it was: ends a watch or a pause, and checks. Any thread.
  void Doubt();
  // Whether what is known was checked since the last doubt. Any thread.
  bool sure() const;
  int64_t lists() const { return lists_; }
  int64_t watches() const { return watches_; }

 private:
  Status ListOnce(std::stop_token stop);
  Status WatchOnce(std::stop_token stop);
  // After a stream that broke off: whether to take it up where it ended.
  Status CheckVersion(std::stop_token stop);
  // Ends with the next doubt. Where there is one already, the version is checked next.
  std::stop_source UntilDoubt(uint64_t& doubts);
  void BeUnsure();
  void BeSure(uint64_t doubts);

  kube::Client& client_;
  Clock& clock_;
  const InformerOptions options_;
  const Sink sink_;
  std::string version_;          // "" = list first
  bool anew_ = false;            // the next list is one `anew`
  bool check_ = false;           // the version is to be checked before the next watch
  bool listed_for_410_ = false;  // and no event has come since
  mutable Mutex mutex_;
  uint64_t doubts_ MT_GUARDED_BY(mutex_) = 0;
  uint64_t checked_ MT_GUARDED_BY(mutex_) = 0;  // of doubts_
  std::stop_source until_doubt_ MT_GUARDED_BY(mutex_);
  std::atomic<bool> synced_{false};
  std::atomic<int64_t> lists_{0}, watches_{0};
};

}  // namespace meshtrain::control
