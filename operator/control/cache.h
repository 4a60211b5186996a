// The last known state of one kind of object, fed by watches and by the answers to our own writes,
// so that it is never behind what this process has done itself. Not thread-safe: its owner locks.
//
// There is one watch of all namespaces, or one for each of some. What one of them has told says
// nothing of how far another is, so each has a version and a list of its own. Keys are
// "NAMESPACE/NAME"; `ns` is the namespace of a watch, "" for the one of all.
//
// resourceVersions of one kind grow, but for a restored etcd (EndList). An answer is taken only
// when it is newer than everything its watch has delivered so far; if it is not, the watch has
// already told this state or a later one. So a deleted object cannot come back, and the event that
// repeats our own write changes nothing (and wakes nobody).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace meshtrain::control {

template <typename T>
class Cache {
 public:
  // What happened to one key: before and after; null where absent. The pointers live until
  // on_change returns.
  using OnChange = std::function<void(const std::string& key, const T* before, const T* after)>;
  explicit Cache(OnChange on_change) : on_change_(std::move(on_change)) {}

  const T* Find(const std::string& key) const {
    const auto it = entries_.find(key);
    return it == entries_.end() ? nullptr : &it->second.value;
  }
  // For changes that the server does not know of (a mark on an object). on_change is not called.
  T* FindMutable(const std::string& key) {
    const auto it = entries_.find(key);
    return it == entries_.end() ? nullptr : &it->second.value;
  }

  // From the watch; `value` absent: deleted.
  void Watched(const std::string& key, int64_t version, std::optional<T> value) {
    Watch& watch = WatchOf(key);
    if (version > watch.seen) watch.seen = version;
    const auto it = entries_.find(key);
    if (value) {
      if (it != entries_.end() && it->second.version >= version) return;
      Set(key, version, std::move(*value));
    } else if (it != entries_.end() && it->second.version <= version) {
      Erase(it);
    }
  }
  void Bookmark(const std::string& ns, int64_t version) {
    Watch& watch = watches_[ns];
    if (version > watch.seen) watch.seen = version;
  }

  // From the answer to a write of ours.
  void Wrote(const std::string& key, int64_t version, T value) {
    if (version <= WatchOf(key).seen) return;
    const auto it = entries_.find(key);
    if (it != entries_.end() && it->second.version >= version) return;
    Set(key, version, std::move(value));
  }

  // What our own deletion took away for good, until list or watch say otherwise.
  void Forget(const std::string& key) {
    if (const auto it = entries_.find(key); it != entries_.end()) Erase(it);
  }

  // A list of a watch's objects: Begin, one Listed per object, End with the list's version. What
  // the list lacks is gone, unless we wrote it after the list was made.
  //
  // `anew`: the server may not be where it was (an etcd restored to an older revision): its
  // versions then say nothing about ours, so the list is all there is, and nothing that was known
  // outlives it. A list that is older than what the watch has told says so by itself.
  void BeginList(const std::string& ns) { watches_[ns].listed.clear(); }
  void Listed(const std::string& key, int64_t version, T value) {
    WatchOf(key).listed.insert_or_assign(key, Entry{version, std::move(value)});
  }
  void EndList(const std::string& ns, int64_t version, bool anew = false) {
    Watch& watch = watches_[ns];
    anew = anew || version < watch.seen;
    for (auto it = entries_.begin(); it != entries_.end();) {
      const auto next = std::next(it);
      const bool gone = &WatchOf(it->first) == &watch && !watch.listed.contains(it->first);
      if (gone && (anew || it->second.version <= version)) Erase(it);
      it = next;
    }
    watch.seen = version;
    for (auto& [key, entry] : watch.listed) {
      const auto it = entries_.find(key);
      if (!anew && it != entries_.end()) {
        if (it->second.version == entry.version) continue;
        if (it->second.version > entry.version && it->second.version > version) continue;
      }
      Set(key, entry.version, std::move(entry.value));
    }
    Map().swap(watch.listed);
  }

  // 0 where absent.
  int64_t VersionOf(const std::string& key) const {
    const auto it = entries_.find(key);
    return it == entries_.end() ? 0 : it->second.version;
  }
  size_t size() const { return entries_.size(); }
  void ForEach(const std::function<void(const std::string& key, const T& value)>& visit) const {
    for (const auto& [key, entry] : entries_) visit(key, entry.value);
  }

 private:
  struct Entry {
    int64_t version = 0;
    T value;
  };
  using Map = std::unordered_map<std::string, Entry>;
  struct Watch {
    int64_t seen = 0;  // the newest version that list or watch has told
    Map listed;
  };

  // The one of the key's namespace, where that is watched for itself; else the one of all.
  Watch& WatchOf(const std::string& key) {
    const auto it = watches_.find(std::string_view(key).substr(0, key.find('/')));
    return it == watches_.end() ? watches_[""] : it->second;
  }
  void Set(const std::string& key, int64_t version, T value) {
    const auto it = entries_.find(key);
    if (it == entries_.end()) {
      const auto added = entries_.emplace(key, Entry{version, std::move(value)}).first;
      on_change_(key, nullptr, &added->second.value);
      return;
    }
    std::swap(it->second.value, value);
    it->second.version = version;
    on_change_(key, &value, &it->second.value);
  }
  void Erase(typename Map::iterator it) {
    const auto node = entries_.extract(it);
    on_change_(node.key(), &node.mapped().value, nullptr);
  }

  OnChange on_change_;
  Map entries_;
  // By namespace. Those of namespaces are made by their first list; nothing is written before.
  std::map<std::string, Watch, std::less<>> watches_;
};

}  // namespace meshtrain::control
