#include "runtime/collective/groups.h"

#include <algorithm>
#include <map>

namespace meshtrain::collective {
namespace {

// Processes of one host next to each other, hosts in the order of their first process.
void ByHost(std::vector<int>& processes, std::span<const int> host_of) {
  std::map<int, int> first;  // host -> its first process in this process group
  for (const int p : processes) first.try_emplace(host_of[p], p);  // `processes` are sorted
  std::stable_sort(processes.begin(), processes.end(),
                   [&](int a, int b) { return first[host_of[a]] < first[host_of[b]]; });
}

void Seats(ProcessGroup& peers, const mesh::Mesh& mesh, const Groups& groups) {
  std::map<int, int> place;
  for (int i = 0; i < peers.size(); ++i) place[peers.processes[i]] = i;
  peers.seats.assign(peers.size(), {});
  for (const int g : peers.groups) {
    for (size_t m = 0; m < groups.members[g].size(); ++m) {
      const int64_t rank = groups.members[g][m];
      peers.seats[place[mesh.devices()[rank].process]].push_back({g, static_cast<int>(m), rank});
    }
  }
  peers.plain = peers.groups.size() == 1 && peers.seats[peers.me].size() == 1;
  int next = 0;
  for (const auto& seats : peers.seats) {
    for (const Seat& seat : seats) peers.plain = peers.plain && seat.member == next++;
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

std::vector<ProcessGroup> ProcessGroupsOf(const mesh::Mesh& mesh, const Groups& groups, int process,
                                          std::span<const int> host_of) {
  // Every process goes over all groups in the same order, so that all find the same process groups
  // and levels.
  std::map<std::vector<int>, size_t> found;
  std::vector<ProcessGroup> process_groups;
  for (size_t g = 0; g < groups.members.size(); ++g) {
    std::vector<int> processes;
    for (const int64_t rank : groups.members[g]) processes.push_back(mesh.devices()[rank].process);
    std::sort(processes.begin(), processes.end());
    processes.erase(std::unique(processes.begin(), processes.end()), processes.end());
    const auto [at, made] = found.try_emplace(processes, process_groups.size());
    if (made) process_groups.emplace_back().processes = processes;
    process_groups[at->second].groups.push_back(static_cast<int>(g));
  }
  std::map<int, int> next;  // process -> the lowest level that it has free
  std::vector<ProcessGroup> ours;
  for (ProcessGroup& peers : process_groups) {
    for (const int p : peers.processes) peers.level = std::max(peers.level, next[p]);
    for (const int p : peers.processes) next[p] = peers.level + 1;
    if (!std::binary_search(peers.processes.begin(), peers.processes.end(), process)) continue;
    ByHost(peers.processes, host_of);
    for (size_t i = 0; i < peers.processes.size(); ++i) {
      const bool same = i > 0 && host_of[peers.processes[i]] == host_of[peers.processes[i - 1]];
      peers.hosts.push_back(i == 0 ? 0 : peers.hosts.back() + (same ? 0 : 1));
    }
    peers.me = static_cast<int>(std::find(peers.processes.begin(), peers.processes.end(), process) -
                                peers.processes.begin());
    Seats(peers, mesh, groups);
    ours.push_back(std::move(peers));
  }
  std::stable_sort(ours.begin(), ours.end(),
                   [](const ProcessGroup& a, const ProcessGroup& b) { return a.level < b.level; });
  return ours;
}

}  // namespace meshtrain::collective
