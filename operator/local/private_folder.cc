#include "operator/local/private_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace meshtrain::local {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "meshtrain-run-";
constexpr std::string_view kRandom = "XXXXXX";  // as mkdtemp(3) wants it

// The folder at `path`, locked; none where somebody else holds it, where it is not this user's, or
// where it is gone.
FileDescriptor Lock(const std::string& path) {
  FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (folder.get() < 0 || ::fstat(folder.get(), &info) != 0 || info.st_uid != ::geteuid()) {
    return {};
  }
  if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) return {};
  // Whoever held it before may have removed it.
  struct stat there {};
  const bool same = ::lstat(path.c_str(), &there) == 0 && there.st_ino == info.st_ino &&
                    there.st_dev == info.st_dev;
  return same ? std::move(folder) : FileDescriptor();
}

// What killed runs left. What cannot be removed is left to whoever comes next.
void Sweep(const std::string& parent) {
  std::error_code error;
  fs::directory_iterator entries(parent, error);
  for (const fs::directory_iterator end; !error && entries != end; entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (!name.starts_with(kPrefix) || name.size() != kPrefix.size() + kRandom.size()) continue;
    const FileDescriptor held = Lock(entries->path().string());
    std::error_code ignored;
    if (held.get() >= 0) fs::remove_all(entries->path(), ignored);
  }
}

}  // namespace

Result<std::unique_ptr<PrivateFolder>> PrivateFolder::Create(const std::string& parent) {
  MT_RETURN_IF_ERROR(CheckPath(parent));
  Sweep(parent);
  // Another run's sweep may come between making and locking, and take it away.
  constexpr int kTries = 100;
  std::string path;
  for (int i = 0; i < kTries; ++i) {
    path = parent + "/" + std::string(kPrefix) + std::string(kRandom);
    if (::mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, "cannot make a folder", path);
    FileDescriptor lock = Lock(path);
    if (lock.get() < 0) continue;
    return std::unique_ptr<PrivateFolder>(new PrivateFolder(std::move(path), std::move(lock)));
  }
  return Unavailable(path + ": expected to lock the new folder, got: none in 100 tries");
}

PrivateFolder::~PrivateFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace meshtrain::local
