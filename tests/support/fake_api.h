// An API server in memory: resourceVersions, preconditions, watches with history and compaction,
// pages, graceful deletion of pods, finalizers, generated uids, and faults on request. Follows the
// real server where the operator can tell the difference; the integration tests have the last word.
// Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "operator/kube/client.h"
#include "runtime/base/mutex.h"

namespace meshtrain::testing {

class FakeApi : public kube::Client {
 public:
  struct Call {
    std::string verb;  // get list version watch create update patch delete
    std::string plural, ns, name, subresource;
    friend bool operator==(const Call&, const Call&) = default;
  };

  // --- kube::Client
  Result<std::string> Get(const kube::Resource& resource, std::string_view ns,
                          std::string_view name, const kube::CallOptions& call) override;
  Result<std::string> List(const kube::Resource& resource, const kube::ListOptions& options,
                           const std::function<void(std::string_view item)>& on_item,
                           const std::function<void()>& on_restart,
                           const kube::CallOptions& call) override;
  Result<std::string> Version(const kube::Resource& resource, std::string_view ns,
                              const kube::CallOptions& call) override;
  Status Watch(
      const kube::Resource& resource, const kube::WatchOptions& options,
      const std::function<void(kube::WatchEventType type, std::string_view resource_version,
                               std::string_view object)>& on_event,
      std::stop_token stop) override;
  // What SetLog gave, as one piece.
  Status ReadLog(std::string_view ns, std::string_view pod, const kube::LogOptions& options,
                 const std::function<void(std::string_view text)>& on_text,
                 std::stop_token stop) override;
  Result<std::string> Create(const kube::Resource& resource, std::string_view ns,
                             std::string_view body, const kube::CallOptions& call) override;
  Result<std::string> Update(const kube::Resource& resource, std::string_view ns,
                             std::string_view name, std::string_view body,
                             const kube::CallOptions& call) override;
  Result<std::string> Patch(const kube::Resource& resource, std::string_view ns,
                            std::string_view name, std::string_view subresource,
                            kube::PatchType type, std::string_view body,
                            const kube::CallOptions& call) override;
  Result<std::string> Delete(const kube::Resource& resource, std::string_view ns,
                             std::string_view name, const kube::DeleteOptions& options,
                             const kube::CallOptions& call) override;

  // --- the world's side (not recorded as calls, never faulted)
  void SetLog(std::string_view ns, std::string_view pod, std::string_view text);
  void Put(const kube::Resource& resource, std::string_view object);  // creates or replaces
  void Remove(const kube::Resource& resource, std::string_view ns, std::string_view name);
  // "" where there is none.
  std::string Peek(const kube::Resource& resource, std::string_view ns,
                   std::string_view name) const;
  std::vector<std::string> All(const kube::Resource& resource) const;

  // --- faults
  // Asked before each call; an error is returned instead of acting. `after`: the call has acted,
  // its answer is lost. Calls that are under way may still ask it when another is set: what it
  // captures must outlast the callers.
  using Fault = std::function<Status(const Call& call, bool after)>;
  void SetFault(Fault fault);
  void CutWatches();  // ends every stream with kUnavailable
  void Compact();     // watches from versions before now answer kOutOfRange
  void SendBookmarks();
  // As an etcd restored to an older revision: all objects and the version are what they were when
  // Snapshot() was called. Watches are cut; one from a later version stays silent until then.
  void Snapshot();
  void Restore();

  std::vector<Call> calls() const;  // in order, watches included
  void ForgetCalls();
  int64_t version() const;

 private:
  using Key = std::tuple<std::string, std::string, std::string>;  // plural, namespace, name
  struct Change {
    int64_t version;
    kube::WatchEventType type;
    std::string plural, ns, object;
  };
  Status Begin(const Call& call);
  Status End(const Call& call);
  std::string Store(const Key& key, nlohmann::json object, kube::WatchEventType type)
      MT_REQUIRES(mutex_);
  void Erase(const Key& key) MT_REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<Key, std::string> objects_ MT_GUARDED_BY(mutex_), snapshot_ MT_GUARDED_BY(mutex_);
  int64_t snapshot_version_ MT_GUARDED_BY(mutex_) = 0;
  std::deque<Change> history_ MT_GUARDED_BY(mutex_);
  std::map<std::string, std::string> logs_ MT_GUARDED_BY(mutex_);  // by NAMESPACE/POD
  std::vector<Call> calls_ MT_GUARDED_BY(mutex_);
  Fault fault_ MT_GUARDED_BY(mutex_);
  int64_t version_ MT_GUARDED_BY(mutex_) = 1000;
  int64_t compacted_ MT_GUARDED_BY(mutex_) = 0;
  int64_t cuts_ MT_GUARDED_BY(mutex_) = 0;
  int64_t uids_ MT_GUARDED_BY(mutex_) = 0;
};

// Whether an object's labels satisfy "a=b,c" (equality and existence only).
bool MatchesSelector(const nlohmann::json& object, std::string_view selector);

}  // namespace meshtrain::testing
