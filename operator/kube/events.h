// Events that `kubectl describe` shows, without flooding the API server: a repeated event raises
// the count of the first one; ten similar ones (same object, type and reason) within ten minutes
// become "(combined from similar events)"; each object may send 25 at once and then one per five
// minutes. These are client-go's rules and constants.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "operator/kube/client.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"

namespace meshtrain::kube {

// What an event is about.
struct EventSubject {
  std::string api_version, kind, ns, name, uid;
  friend auto operator<=>(const EventSubject&, const EventSubject&) = default;
};

struct Event {
  EventSubject about;
  bool warning = false;
  std::string reason;
  std::string message;
  friend auto operator<=>(const Event&, const Event&) = default;
};

// Decides what becomes of an event. Not thread-safe, no I/O; keeps the newest 4,096 events in mind.
class EventCorrelator {
 public:
  struct Send {
    std::string event_name;  // of the Event object
    Event event;             // its message may have been combined
    int64_t count = 1;       // 1: create it; more: it exists, raise its count
    TimePoint first, last;
  };
  // nullopt when the subject has sent too many.
  std::optional<Send> Correlate(const Event& event, TimePoint now);

 private:
  struct Known {
    std::string event_name;
    int64_t count = 0;
    TimePoint first;
  };
  struct Similar {
    std::map<std::string, bool> messages;
    TimePoint last;
  };
  struct Bucket {
    double tokens = 25;
    TimePoint last;
  };
  std::map<Event, Known> known_;
  std::map<Event, Similar> similar_;  // keyed without the message
  std::map<EventSubject, Bucket> buckets_;
  int64_t named_ = 0;
};

// Thread-safe. Sends on a thread of its own; Record never blocks and never fails: when 1,000 wait,
// new ones are dropped.
class EventRecorder {
 public:
  // `component` is event.source.component.
  EventRecorder(Client& client, Clock& clock, std::string component);
  ~EventRecorder();  // drops what has not been sent

  void Record(Event event);

  // Waits until everything recorded so far has been sent or dropped. False when time is up.
  bool Flush(Duration timeout);

 private:
  void Run(std::stop_token stop);
  void SendOne(const Event& event, std::stop_token stop);

  Client& client_;
  Clock& clock_;
  const std::string component_;
  EventCorrelator correlator_;  // the thread's own
  Mutex mutex_;
  CondVar changed_;
  std::list<Event> waiting_ MT_GUARDED_BY(mutex_);
  bool busy_ MT_GUARDED_BY(mutex_) = false;
  int64_t dropped_ MT_GUARDED_BY(mutex_) = 0;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace meshtrain::kube
