#include "runtime/parameter/messages/push_table.h"

#include <algorithm>

namespace meshtrain::parameter {

PushTable::Verdict PushTable::Check(const PushId& push) const {
  const auto it = workers_.find(push.worker);
  if (it == workers_.end() || push.incarnation > it->second.incarnation) return Verdict::kNew;
  const Seen& seen = it->second;
  if (push.incarnation < seen.incarnation) return Verdict::kStale;
  return push.seq < seen.below || seen.seqs.contains(push.seq) ? Verdict::kSeen : Verdict::kNew;
}

void PushTable::Add(const PushId& push, int64_t settled) {
  Seen& seen = workers_[push.worker];
  if (push.incarnation > seen.incarnation) seen = {.incarnation = push.incarnation};
  seen.seqs.insert(push.seq);
  seen.below = std::max(seen.below, settled);
  seen.seqs.erase(seen.seqs.begin(), seen.seqs.lower_bound(seen.below));
  while (!seen.seqs.empty() && *seen.seqs.begin() == seen.below) {
    seen.seqs.erase(seen.seqs.begin());
    ++seen.below;
  }
}

void PushTable::End(int32_t worker, int64_t incarnation) {
  const auto it = workers_.find(worker);
  if (incarnation > (it == workers_.end() ? 0 : it->second.incarnation)) {
    workers_[worker] = {.incarnation = incarnation};
  }
}

std::vector<PushTable::Entry> PushTable::Entries() const {
  std::vector<Entry> entries;
  for (const auto& [worker, seen] : workers_) {
    entries.push_back({worker, seen.incarnation, seen.below, {seen.seqs.begin(), seen.seqs.end()}});
  }
  return entries;
}

PushTable PushTable::FromEntries(const std::vector<Entry>& entries) {
  PushTable table;
  for (const Entry& e : entries) {
    table.workers_[e.worker] = {e.incarnation, e.below, {e.seqs.begin(), e.seqs.end()}};
  }
  return table;
}

}  // namespace meshtrain::parameter
