// The memory that this process may use, and that it has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace meshtrain {

struct MemoryLimit {
  int64_t bytes = 0;
  std::string whose;  // "this machine's memory", "the container's limit"
};

// Where the system says what it has; tests bring folders of their own.
struct MemorySources {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

// The least of the machine's memory, of the limits of the control groups that this process is in
// (memory.max of v2, memory.limit_in_bytes of v1), and of its address space (ulimit -v). What other
// processes use is not taken off. Where nothing can be read, the largest number. Any thread.
MemoryLimit UsableMemory(const MemorySources& sources = {});

// Of this process, what lies in the machine's memory; nothing where the system does not say. Any
// thread.
std::optional<int64_t> ResidentBytes();

// Gives what was freed back to the system; the allocator keeps it else, for the next time. For
// after something large that does not come again. Takes milliseconds. Any thread.
void ReturnFreedMemory();

}  // namespace meshtrain
