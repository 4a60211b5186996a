// Containers that the kubelet restarted. A pod tells how often, and how its container last ended,
// but nothing more once it is gone: so what is read goes into the status, and what is there never
// falls.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {
namespace {

constexpr size_t kLongestIncarnation = 32;

struct Restarted {
  int32_t times = 0;
  std::string lost;  // the incarnation that its last end named
};

// How many restarts `lost` joins with others.
int32_t Joined(const std::vector<api::InPlace::Lost>& lost) {
  int32_t joined = 0;
  for (const api::InPlace::Lost& entry : lost) joined += entry.pods - 1;
  return joined;
}

// For one more incarnation: the oldest that no pod tells of any more goes, and what it joined stays
// joined. False where pods tell of all of them.
bool MakeRoom(const std::map<std::string, int32_t>& telling, api::InPlace* tally) {
  if (tally->lost.size() < api::kMaxLost) return true;
  const auto gone = std::find_if(tally->lost.begin(), tally->lost.end(), [&](const auto& entry) {
    return !telling.contains(entry.incarnation);
  });
  if (gone == tally->lost.end()) return false;
  tally->past -= gone->pods - 1;
  tally->told += gone->pods - 1;
  tally->lost.erase(gone);
  return true;
}

void Count(const std::vector<Restarted>& pods, api::InPlace* tally) {
  std::map<std::string, int32_t> telling;
  int32_t times = 0;
  for (const Restarted& pod : pods) {
    times += pod.times;
    if (!pod.lost.empty()) ++telling[pod.lost];
  }
  for (const auto& [incarnation, count] : telling) {
    const auto found = std::find_if(tally->lost.begin(), tally->lost.end(), [&](const auto& entry) {
      return entry.incarnation == incarnation;
    });
    if (found != tally->lost.end()) {
      found->pods = std::max(found->pods, count);
    } else if (MakeRoom(telling, tally)) {
      tally->lost.push_back({incarnation, count});
    }
  }
  const int32_t told = times - Joined(tally->lost);
  // What the pods no longer tell of was told by pods that are gone.
  if (told < tally->told) tally->past += tally->told - told;
  tally->told = told;
}

}  // namespace

std::string LostIncarnation(const PodSeen& pod) {
  if (pod.exit_code.value_or(pod.last_exit_code.value_or(0)) != cluster::kExitRetry) return {};
  if (!pod.termination_message.starts_with('{')) return {};
  const auto json = nlohmann::json::parse(pod.termination_message, nullptr,
                                          /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  const auto found = json.find("lostIncarnation");
  if (found == json.end() || !found->is_string()) return {};
  return Tidy(found->get_ref<const std::string&>(), kLongestIncarnation);
}

void RecordInPlace(const View& view, Draft* draft) {
  std::vector<Restarted> all;
  std::map<Role, std::vector<Restarted>> by_role;
  for (const auto& [task, pod] : view.ours) {
    // As long as a pod is there it counts, wanted or not: one on a dead node may outlast a scaling
    // down and up again.
    if (pod->restart_count <= 0) continue;
    // Of a pod that ended, or that waits to be restarted, the message is about an end that no
    // counted restart in place has followed.
    const bool follows = !pod->exit_code && pod->waiting_reason.empty();
    const Restarted one{pod->restart_count, follows ? LostIncarnation(*pod) : std::string()};
    all.push_back(one);
    by_role[task.role].push_back(one);
  }
  api::Recovery& recovery = draft->next.recovery;
  const int32_t before = recovery.in_place.total();
  Count(all, &recovery.in_place);
  int32_t counted = recovery.in_place.total() - before;
  for (const auto& [role, unused] : view.job.spec.replica_specs) {
    const auto found = recovery.in_place_by_role.find(role);
    const bool known = found != recovery.in_place_by_role.end();
    const auto& pods = by_role[role];
    if (pods.empty() && !known) continue;
    api::InPlace& tally = known ? found->second : recovery.in_place_by_role[role];
    const int32_t role_before = tally.total();
    Count(pods, &tally);
    const int32_t grown = tally.total() - role_before;
    // More than the list holds would only push out each other.
    for (int32_t i = 0; i < std::min<int32_t>(grown, api::kMaxRecent); ++i, --counted) {
      Remember({.at = view.stamp, .role = role, .counted = counted > 0, .in_place = true},
               &recovery);
    }
  }
}

int32_t RestartsInPlace(const api::Recovery& recovery, std::optional<Role> role) {
  if (!role) return recovery.in_place.total();
  const auto found = recovery.in_place_by_role.find(*role);
  return found == recovery.in_place_by_role.end() ? 0 : found->second.total();
}

}  // namespace meshtrain::reconcile
