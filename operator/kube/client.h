// What the operator may ask of an API server. Objects travel as JSON text: whoever needs a field
// parses it (often only a slice, see json_slice.h), and nothing is parsed twice.
//
// Errors, for every call: kNotFound (404), kAlreadyExists (409), kAborted (409 conflict: a
// precondition or resourceVersion no longer holds), kOutOfRange (410: list again), kInvalidArgument
// (400, 413, 415, 422), kPermissionDenied (403), kResourceExhausted (403 by quota),
// kUnauthenticated (401), kFailedPrecondition (this process may not write now: lease lost),
// kDeadlineExceeded (504 or our deadline), kUnavailable (429, 502 and 503 after all retries, a 5xx
// that is not the API server's own, or no connection; a write may or may not have happened),
// kUnknown (another 5xx, in the API server's own words: it is there and could not, as where an
// admission webhook does not answer; a write may or may not have happened), kDataLoss (an answer
// past the limits below, of which nothing is used; a write may have happened), kCancelled (stop
// requested).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::kube {

// What one answer may be. No API server comes near these: an object of etcd has at most 1.5 MiB
// unless its owner raised that. Whoever is past one of them is not to be believed, nor to be asked
// again at once.
inline constexpr size_t kMaxHead = 64 << 10;    // status line and headers
inline constexpr size_t kMaxObject = 16 << 20;  // one object; one event of a watch
inline constexpr size_t kMaxPage = 64 << 20;    // one page of a list
inline constexpr int kMaxPages = 1000;          // of one list
inline constexpr int kMaxShortPages = 100;      // of them, those with fewer objects than asked for

// A kind of object as the API server's paths name it.
struct Resource {
  std::string group;  // "" for the core group
  std::string version;
  std::string plural;

  friend auto operator<=>(const Resource&, const Resource&) = default;
};

inline Resource Pods() { return {"", "v1", "pods"}; }
inline Resource Services() { return {"", "v1", "services"}; }
inline Resource Events() { return {"", "v1", "events"}; }
inline Resource Nodes() { return {"", "v1", "nodes"}; }
inline Resource Leases() { return {"coordination.k8s.io", "v1", "leases"}; }

// "/api/v1/namespaces/ns/pods/name/status"; namespace, name and subresource may be empty. Parts are
// percent-encoded.
std::string PathOf(const Resource& resource, std::string_view ns, std::string_view name = {},
                   std::string_view subresource = {});

struct CallOptions {
  std::stop_token stop;
  Duration timeout = std::chrono::seconds(30);
  bool dry_run = false;  // of Create: the server decides and stores nothing
};

struct ListOptions {
  std::string ns;  // "" = all namespaces
  std::string label_selector;
  std::string field_selector;
  int chunk = 500;  // objects per page; 0 = all at once
};

enum class WatchEventType { kAdded, kModified, kDeleted, kBookmark };

struct WatchOptions {
  std::string ns;
  std::string label_selector;
  std::string field_selector;
  std::string resource_version;                       // events after this one
  Duration server_timeout = std::chrono::minutes(7);  // the server ends the stream then
};

struct LogOptions {
  std::string container;  // "": the pod's only one
  bool follow = false;    // until the container has ended
  bool previous = false;  // of the container before a restart in place
  // Each line after its time and a blank, "2026-01-02T03:04:05.678901234Z a line".
  bool timestamps = false;
  std::optional<TimePoint> since;  // to whole seconds, as the server takes it
  std::optional<int64_t> tail_lines;
};

enum class PatchType { kMerge, kJson, kStrategicMerge };

struct DeleteOptions {
  std::string uid;  // preconditions; "" = none
  std::string resource_version;
  std::optional<int64_t> grace_seconds;
  std::string propagation = "Background";
};

// Thread-safe.
class Client {
 public:
  virtual ~Client() = default;

  virtual Result<std::string> Get(const Resource& resource, std::string_view ns,
                                  std::string_view name, const CallOptions& call) = 0;

  // Calls `on_item` with each object's text, in order and on this thread, and returns the list's
  // resourceVersion. A page that expired (410 on a continue token) starts the list again, twice at
  // most: on_restart is called before. A page that is too large is asked for again in smaller ones.
  virtual Result<std::string> List(const Resource& resource, const ListOptions& options,
                                   const std::function<void(std::string_view item)>& on_item,
                                   const std::function<void()>& on_restart,
                                   const CallOptions& call) = 0;

  // The resourceVersion of a kind as of now, no older than any that was told before, unless the
  // server's store was set back.
  virtual Result<std::string> Version(const Resource& resource, std::string_view ns,
                                      const CallOptions& call) = 0;

  // Calls `on_event` on this thread for each event of one stream, bookmarks included. OK when the
  // server ended the stream as it does after server_timeout; kOutOfRange for 410, in the answer or
  // in the stream.
  virtual Status Watch(
      const Resource& resource, const WatchOptions& options,
      const std::function<void(WatchEventType type, std::string_view resource_version,
                               std::string_view object)>& on_event,
      std::stop_token stop) = 0;

  // Calls `on_text` on this thread with each piece of a container's log. OK at its end. Errors
  // beside those above: kInvalidArgument where the container has not started.
  virtual Status ReadLog(std::string_view ns, std::string_view pod, const LogOptions& options,
                         const std::function<void(std::string_view text)>& on_text,
                         std::stop_token stop) = 0;

  // The next three return the object as the server stored it.
  virtual Result<std::string> Create(const Resource& resource, std::string_view ns,
                                     std::string_view body, const CallOptions& call) = 0;
  virtual Result<std::string> Update(const Resource& resource, std::string_view ns,
                                     std::string_view name, std::string_view body,
                                     const CallOptions& call) = 0;
  virtual Result<std::string> Patch(const Resource& resource, std::string_view ns,
                                    std::string_view name, std::string_view subresource,
                                    PatchType type, std::string_view body,
                                    const CallOptions& call) = 0;

  // The answer's text: the object, now with a deletionTimestamp, or a Status where it is gone at
  // once.
  virtual Result<std::string> Delete(const Resource& resource, std::string_view ns,
                                     std::string_view name, const DeleteOptions& options,
                                     const CallOptions& call) = 0;
};

}  // namespace meshtrain::kube
