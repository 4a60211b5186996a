#include "runtime/collective/groups.h"

#include <algorithm>
#include <map>

namespace meshtrain::collective {
namespace {

// Processes of one host next to each other, hosts in the order of their first process.
void ByHost(std::vector<int>& processes, std::span<const int> host_of) {
  std::map<int, int> first;  // host -> its first process in this team
  for (const int p : processes) first.try_emplace(host_of[p], p);  // `processes` are sorted
  std::stable_sort(processes.begin(), processes.end(),
                   [&](int a, int b) { return first[host_of[a]] < first[host_of[b]]; });
}

void Seats(Team& team, const mesh::Mesh& mesh, const Groups& groups) {
  std::map<int, int> place;
  for (int i = 0; i < team.size(); ++i) place[team.processes[i]] = i;
  team.seats.assign(team.size(), {});
  for (const int g : team.groups) {
    for (size_t m = 0; m < groups.members[g].size(); ++m) {
      const int64_t rank = groups.members[g][m];
      team.seats[place[mesh.devices()[rank].process]].push_back({g, static_cast<int>(m), rank});
    }
  }
  team.plain = team.groups.size() == 1 && team.seats[team.me].size() == 1;
  int next = 0;
  for (const auto& seats : team.seats) {
    for (const Seat& seat : seats) team.plain = team.plain && seat.member == next++;
  }
}

}  // namespace

Result<Groups> GroupsOver(const mesh::Mesh& mesh, const std::vector<int>& axes) {
  for (size_t i = 0; i < axes.size(); ++i) {
    const int axis = axes[i];
    if (axis < 0 || axis >= mesh.num_axes() ||
        std::find(axes.begin(), axes.begin() + static_cast<int64_t>(i), axis) !=
            axes.begin() + static_cast<int64_t>(i)) {
      return InvalidArgument("mesh " + mesh.ToString() + " has no such group of axes, got: axis " +
                             std::to_string(axis));
    }
  }
  Groups made;
  made.place.assign(mesh.size(), {-1, 0});
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    if (made.place[rank].first >= 0) continue;
    std::vector<int64_t> members = mesh.Group(rank, axes);
    for (size_t i = 0; i < members.size(); ++i) {
      made.place[members[i]] = {static_cast<int>(made.members.size()), static_cast<int>(i)};
    }
    made.size = static_cast<int64_t>(members.size());
    made.members.push_back(std::move(members));
  }
  return made;
}

std::vector<Team> TeamsOf(const mesh::Mesh& mesh, const Groups& groups, int process,
                          std::span<const int> host_of) {
  // Every process goes over all groups in the same order, so that all find the same teams and
  // levels.
  std::map<std::vector<int>, size_t> found;
  std::vector<Team> teams;
  for (size_t g = 0; g < groups.members.size(); ++g) {
    std::vector<int> processes;
    for (const int64_t rank : groups.members[g]) processes.push_back(mesh.devices()[rank].process);
    std::sort(processes.begin(), processes.end());
    processes.erase(std::unique(processes.begin(), processes.end()), processes.end());
    const auto [at, made] = found.try_emplace(processes, teams.size());
    if (made) teams.emplace_back().processes = processes;
    teams[at->second].groups.push_back(static_cast<int>(g));
  }
  std::map<int, int> next;  // process -> the lowest level that it has free
  std::vector<Team> ours;
  for (Team& team : teams) {
    for (const int p : team.processes) team.level = std::max(team.level, next[p]);
    for (const int p : team.processes) next[p] = team.level + 1;
    if (!std::binary_search(team.processes.begin(), team.processes.end(), process)) continue;
    ByHost(team.processes, host_of);
    for (size_t i = 0; i < team.processes.size(); ++i) {
      const bool same = i > 0 && host_of[team.processes[i]] == host_of[team.processes[i - 1]];
      team.hosts.push_back(i == 0 ? 0 : team.hosts.back() + (same ? 0 : 1));
    }
    team.me = static_cast<int>(std::find(team.processes.begin(), team.processes.end(), process) -
                               team.processes.begin());
    Seats(team, mesh, groups);
    ours.push_back(std::move(team));
  }
  std::stable_sort(ours.begin(), ours.end(),
                   [](const Team& a, const Team& b) { return a.level < b.level; });
  return ours;
}

}  // namespace meshtrain::collective
