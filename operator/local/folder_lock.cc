#include "operator/local/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <utility>

#include "runtime/base/text.h"
#include "runtime/base/time_text.h"

namespace meshtrain::local {
namespace {

constexpr std::chrono::milliseconds kPause{20};
constexpr int64_t kLongestHolder = 256;

}  // namespace

Result<FolderLock> FolderLock::Take(const std::string& folder, Duration patience) {
  const std::string path = folder + "/run.lock";
  MT_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_RDWR | O_CREAT | O_NOFOLLOW));
  const Duration end = SystemClock().Monotonic() + patience;
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return ErrnoStatus(errno, "cannot lock", path);
    if (SystemClock().Monotonic() >= end) {
      const Result<std::string> holder = ReadFile(path, kLongestHolder);
      return AlreadyExists(folder + ": expected a folder that no run writes to, got: one of " +
                           (holder.ok() && !holder->empty() ? Printable(*holder) : "another run"));
    }
    std::this_thread::sleep_for(kPause);
  }
  // For people: a lock whose holder cannot be written holds all the same.
  const std::string holder =
      "process " + std::to_string(::getpid()) + " since " + FormatTime(SystemClock().Now());
  if (::ftruncate(file.get(), 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(file.get(), holder.data(), holder.size(), 0);
  }
  return FolderLock(std::move(file));
}

}  // namespace meshtrain::local
