#include "runtime/membership/stuck.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace meshtrain::membership {
namespace {

// Who computes at a place is behind who is busy there, and that one behind who waits there.
auto Position(const Standing& member) {
  const MemberProgress& at = member.progress;
  const int doing = !at.waiting_at.empty() ? 2 : !at.busy_with.empty() ? 1 : 0;
  return std::tuple(at.step, at.collective, at.agreements, doing);
}

}  // namespace

std::string Where(const MemberProgress& at) {
  return "stands at step " + std::to_string(at.step) + ", collective " +
         std::to_string(at.collective) +
         (!at.waiting_at.empty()  ? ", in " + at.waiting_at
          : !at.busy_with.empty() ? ", busy with " + at.busy_with
                                  : ", and computes");
}

void Standing::Report(MemberProgress now_at, Duration now) {
  const bool same_place = now_at.step == progress.step &&
                          now_at.collective == progress.collective &&
                          now_at.agreements == progress.agreements;
  if (!same_place || now_at.busy_with != progress.busy_with) moved = now;
  if (!same_place || progress.waiting_at.empty()) waiting_since = now;
  progress = std::move(now_at);
}

std::optional<Status> FindStuck(std::span<const Standing> members, Duration now,
                                Duration stuck_after) {
  if (members.size() < 2) return std::nullopt;
  const auto last = std::min_element(
      members.begin(), members.end(),
      [](const Standing& a, const Standing& b) { return Position(a) < Position(b); });
  if (now - last->moved < stuck_after || !last->progress.busy_with.empty()) return std::nullopt;
  size_t waiting_long = 0;  // anywhere
  int waiting_ahead = 0;    // for however long
  int as_far = 0;           // at the same place as the last, itself not counted
  const Standing* longest_ahead = nullptr;
  for (const Standing& member : members) {
    const bool ahead = Position(member) != Position(*last);
    if (!ahead && &member != &*last) ++as_far;
    if (member.progress.waiting_at.empty()) continue;
    if (now - member.waiting_since >= stuck_after) ++waiting_long;
    if (!ahead) continue;
    ++waiting_ahead;
    if (longest_ahead == nullptr || member.waiting_since < longest_ahead->waiting_since) {
      longest_ahead = &member;
    }
  }
  const std::string since = " for " + SecondsText(now - last->moved);
  if (longest_ahead != nullptr && now - longest_ahead->waiting_since >= stuck_after) {
    return Unavailable(cluster::ToString(last->task) +
                       (as_far > 0 ? " and " + std::to_string(as_far) + " more" : "") + " stuck: " +
                       Where(last->progress) + since + "; " + std::to_string(waiting_ahead) +
                       (waiting_ahead == 1 ? " other waits" : " others wait") + " for it, " +
                       cluster::ToString(longest_ahead->task) + " longest, in " +
                       longest_ahead->progress.waiting_at);
  }
  if (waiting_long == members.size()) {
    return Unavailable(cluster::ToString(last->task) + " and all others stuck: each " +
                       Where(last->progress) + since + ", and none is behind");
  }
  return std::nullopt;
}

std::string SecondsText(Duration duration) {
  const int64_t tenths =
      std::chrono::duration_cast<std::chrono::milliseconds>(duration).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace meshtrain::membership
