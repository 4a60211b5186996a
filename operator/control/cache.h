// The last known state of one kind of object, fed by a watch and by the answers to our own writes,
// so that it is never behind what this process has done itself. Not thread-safe: its owner locks.
//
// resourceVersions of one kind grow, but for a restored etcd (EndList). An answer is taken only
// when it is newer than everything the watch has delivered so far; if it is not, the watch has
// already told this state or a later one. So a deleted object cannot come back, and the event that
// repeats our own write changes nothing (and wakes nobody).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
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
    if (version > seen_) seen_ = version;
    const auto it = entries_.find(key);
    if (value) {
      if (it != entries_.end() && it->second.version >= version) return;
      Set(key, version, std::move(*value));
    } else if (it != entries_.end() && it->second.version <= version) {
      Erase(it);
    }
  }
  void Bookmark(int64_t version) {
    if (version > seen_) seen_ = version;
  }

  // From the answer to a write of ours.
  void Wrote(const std::string& key, int64_t version, T value) {
    if (version <= seen_) return;
    const auto it = entries_.find(key);
    if (it != entries_.end() && it->second.version >= version) return;
    Set(key, version, std::move(value));
  }

  // What our own deletion took away for good, until list or watch say otherwise.
  void Forget(const std::string& key) {
    if (const auto it = entries_.find(key); it != entries_.end()) Erase(it);
  }

  // A list: Begin, one Listed per object, End with the list's version. What the list lacks is gone,
  // unless we wrote it after the list was made.
  //
  // `anew`: the server may not be where it was (an etcd restored to an older revision): its
  // versions then say nothing about ours, so the list is all there is, and nothing that was known
  // outlives it. A list that is older than what the watch has told says so by itself.
  void BeginList() { listed_.clear(); }
  void Listed(const std::string& key, int64_t version, T value) {
    listed_.insert_or_assign(key, Entry{version, std::move(value)});
  }
  void EndList(int64_t version, bool anew = false) {
    anew = anew || version < seen_;
    for (auto it = entries_.begin(); it != entries_.end();) {
      const auto next = std::next(it);
      if (!listed_.contains(it->first) && (anew || it->second.version <= version)) Erase(it);
      it = next;
    }
    seen_ = version;
    for (auto& [key, entry] : listed_) {
      const auto it = entries_.find(key);
      if (!anew && it != entries_.end()) {
        if (it->second.version == entry.version) continue;
        if (it->second.version > entry.version && it->second.version > version) continue;
      }
      Set(key, entry.version, std::move(entry.value));
    }
    std::unordered_map<std::string, Entry>().swap(listed_);
  }

  // 0 where absent.
  int64_t VersionOf(const std::string& key) const {
    const auto it = entries_.find(key);
    return it == entries_.end() ? 0 : it->second.version;
  }
  // The newest version that list or watch has told.
  int64_t seen() const { return seen_; }
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
  Map listed_;
  int64_t seen_ = 0;
};

}  // namespace meshtrain::control
