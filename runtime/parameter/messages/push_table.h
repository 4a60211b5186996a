// Which pushes a server has applied, so that one that is sent again is applied once. A value; pure.
//
// A worker numbers its pushes; several may be under way at once and arrive in any order. With each
// it says below which number nothing comes any more (`settled`), so an entry never grows beyond
// what is under way.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace meshtrain::parameter {

struct PushId {
  int32_t worker = 0;
  int64_t incarnation = 0;  // of the worker: rises each time the coordinator sets it up
  int64_t seq = 0;          // from 0 in each incarnation
  friend bool operator==(const PushId&, const PushId&) = default;
};

class PushTable {
 public:
  enum class Verdict : uint8_t {
    kNew,
    kSeen,   // applied before, or settled: acknowledge, apply nothing
    kStale,  // of an incarnation that has ended: refuse
  };
  Verdict Check(const PushId& push) const;
  // Notes that `push`, a new one, is applied.
  void Add(const PushId& push, int64_t settled);
  // The worker's incarnations before `incarnation` have ended.
  void End(int32_t worker, int64_t incarnation);

  struct Entry {
    int32_t worker = 0;
    int64_t incarnation = 0;
    int64_t below = 0;          // all before it
    std::vector<int64_t> seqs;  // and these, rising
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  std::vector<Entry> Entries() const;  // by worker
  static PushTable FromEntries(const std::vector<Entry>& entries);

  friend bool operator==(const PushTable&, const PushTable&) = default;

 private:
  struct Seen {
    int64_t incarnation = 0;
    int64_t below = 0;
    std::set<int64_t> seqs;  // all >= below
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  std::map<int32_t, Seen> workers_;
};

}  // namespace meshtrain::parameter
