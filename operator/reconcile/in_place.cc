// Containers that the kubelet restarted. A pod tells how often, and how its container last ended,
// but not how it ended before, and nothing more once it is gone: so what is read goes into the
// status, and what is there never falls.
#include <algorithm>

#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {
namespace {

struct Restarted {
  int32_t times = 0;
  bool asked = false;  // the last with 138: the same incident as some other pod's, perhaps
};

// The restarts that are not explained by `incidents` that a pod may have joined. A last end that
// was not 138 joined nothing.
int32_t Own(const std::vector<Restarted>& pods, int32_t incidents) {
  int32_t own = 0;
  for (const Restarted& pod : pods) {
    own += std::max(pod.times - incidents, pod.asked ? 0 : 1);
  }
  return own;
}

void Count(const std::vector<Restarted>& pods, api::InPlace* tally) {
  int32_t most = 0;
  int32_t most_asked = 0;
  for (const Restarted& pod : pods) {
    most = std::max(most, pod.times);
    if (pod.asked) most_asked = std::max(most_asked, pod.times);
  }
  // What the pods no longer tell of was told by pods that are gone.
  if (tally->incidents > most) {
    tally->past += tally->incidents - most;
    tally->incidents = most;
  }
  if (const int32_t own = Own(pods, tally->incidents); own < tally->own) {
    tally->past += tally->own - own;
    tally->own = own;
  }
  // As many incidents as explain most restarts, where those that were already called a pod's own
  // stay so. The sum is convex in the number of incidents, so the first rise ends the search.
  const auto sum = [&](int32_t incidents) {
    return incidents + std::max(Own(pods, incidents), tally->own);
  };
  int32_t incidents = tally->incidents;
  while (incidents < most_asked && sum(incidents + 1) <= sum(incidents)) ++incidents;
  tally->own = std::max(Own(pods, incidents), tally->own);
  tally->incidents = incidents;
}

}  // namespace

void RecordInPlace(const View& view, Draft* draft) {
  std::vector<Restarted> all;
  std::map<Role, std::vector<Restarted>> by_role;
  for (const auto& [task, pod] : view.ours) {
    // As long as a pod is there it counts, wanted or not: one on a dead node may outlast a scaling
    // down and up again.
    if (pod->restart_count <= 0) continue;
    const Restarted one{pod->restart_count, pod->last_exit_code == cluster::kExitRetry};
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
