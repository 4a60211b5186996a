// Who takes part in a call: the mesh's groups over some axes, and how they fall upon processes.
// Pure.
//
// A *process group* is the processes that some groups of a call span, with all groups that span
// exactly these: what one process sends to another of its process group in this call goes in one
// piece. Worked example, batch=4,model=2 in two processes:
//   over `batch`  groups {0,2,4,6} and {1,3,5,7}, both in both processes: one process group {0,1}
//                 of two groups
//   over `model`  groups {0,1} {2,3} of process 0 and {4,5} {6,7} of process 1: process groups {0}
//                 and {1} of two groups each
// A process may be in several process groups of one call. It serves them in the order of their
// levels, which rise along every process: all members of a process group agree on its level, so no
// circle of them waits for itself.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/mesh.h"

namespace meshtrain::collective {

struct Groups {
  int64_t size = 1;                           // members of each
  std::vector<std::vector<int64_t>> members;  // per group: ranks
  std::vector<std::pair<int, int>> place;     // per rank: its group, its index there
};

// Errors: kInvalidArgument naming the mesh and the axis that it lacks or that is named twice.
Result<Groups> GroupsOver(const mesh::Mesh& mesh, const std::vector<int>& axes);

// One member of one group of a process group.
struct Seat {
  int group = 0;   // index into Groups::members
  int member = 0;  // index into the group
  int64_t rank = 0;
};

struct ProcessGroup {
  std::vector<int> processes;  // process indices; those of one host stand together
  std::vector<int> hosts;      // per process: its host's number within `processes`, rising from 0
  int me = 0;                  // our place in `processes`
  int level = 0;
  std::vector<int> groups;               // indices into Groups::members
  std::vector<std::vector<Seat>> seats;  // per process: by group, then by member
  // One group, and its members stand in the order of `processes`, ours being one: a device's
  // buffers are laid out as the process group's are.
  bool plain = false;

  int size() const { return static_cast<int>(processes.size()); }
};

// The process groups that `process` is in, by level. `host_of` gives a number per process; equal
// ones share memory.
std::vector<ProcessGroup> ProcessGroupsOf(const mesh::Mesh& mesh, const Groups& groups, int process,
                                          std::span<const int> host_of);

}  // namespace meshtrain::collective
