#include "runtime/base/memory.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <limits>
#include <sstream>

#include "runtime/base/file.h"
#include "runtime/base/text.h"

namespace meshtrain {
namespace {

constexpr int64_t kLargestFile = 1 << 20;

void Lower(MemoryLimit& limit, int64_t bytes, const char* whose) {
  if (bytes > 0 && bytes < limit.bytes) limit = {bytes, whose};
}

// "MemTotal:       24679424 kB" -> bytes; 0: not there.
int64_t MachineMemory(const std::string& meminfo) {
  std::istringstream lines(meminfo);
  std::string key, unit;
  int64_t kib = 0;
  while (lines >> key) {
    if (key == "MemTotal:" && lines >> kib >> unit) return kib * 1024;
    lines.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

// Of a group and those that it lies in; "max" and what is no number are no limit.
void LowerByGroup(MemoryLimit& limit, const std::string& root, std::string group,
                  const char* file) {
  for (;;) {
    std::string path = root;
    path += group;
    path += "/";
    path += file;
    if (const auto text = ReadFile(path, kLargestFile); text.ok()) {
      Lower(limit, ParseInt(Trim(*text)).value_or(0), "the container's limit");
    }
    const size_t parent = group.rfind('/');
    if (parent == std::string::npos || group.empty()) return;
    group.resize(parent);
  }
}

}  // namespace

MemoryLimit UsableMemory(const MemorySources& sources) {
  MemoryLimit limit{std::numeric_limits<int64_t>::max(), "nothing"};
  if (const auto text = ReadFile(sources.proc + "/meminfo", kLargestFile); text.ok()) {
    Lower(limit, MachineMemory(*text), "this machine's memory");
  }
  // Lines "0::/user.slice/a.scope" (v2) and "7:memory:/docker/b" (v1). Inside a container the path
  // may be that of the host, which is not there: then the root is the container's own group.
  if (const auto text = ReadFile(sources.proc + "/self/cgroup", kLargestFile); text.ok()) {
    for (const std::string& line : Split(*text, '\n')) {
      const size_t first = line.find(':');
      const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
      if (second == std::string::npos) continue;
      const std::string controllers = line.substr(first + 1, second - first - 1);
      std::string group = line.substr(second + 1);
      if (group == "/") group.clear();
      if (controllers.empty()) LowerByGroup(limit, sources.cgroup, group, "memory.max");
      for (const std::string& controller : Split(controllers, ',')) {
        if (controller != "memory") continue;
        LowerByGroup(limit, sources.cgroup + "/memory", group, "memory.limit_in_bytes");
      }
    }
  }
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY &&
      space.rlim_cur <= static_cast<rlim_t>(std::numeric_limits<int64_t>::max())) {
    Lower(limit, static_cast<int64_t>(space.rlim_cur), "the process's limit (ulimit -v)");
  }
  return limit;
}

std::optional<int64_t> ResidentBytes() {
  const auto statm = ReadFile("/proc/self/statm", 4096);
  if (!statm.ok()) return std::nullopt;
  const auto fields = Split(*statm, ' ');
  const auto pages = fields.size() > 1 ? ParseInt(fields[1]) : std::nullopt;
  if (!pages) return std::nullopt;
  return *pages * sysconf(_SC_PAGESIZE);
}

void ReturnFreedMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace meshtrain
