// Files without half-written ones. Errors: kNotFound, kPermissionDenied, kAlreadyExists (what lies
// there is no file), kResourceExhausted (disk full), kUnavailable (other), each naming the path;
// kInvalidArgument for a path with a NUL byte, which the system would cut off there.
//
// Kept true: whatever a path names, opening it ends at once. All files of input and output are
// opened by OpenFile, and nothing but a regular file is read or written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/status.h"

namespace meshtrain {

// Closes itself. Not thread-safe.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return fd_; }  // -1: none
  int Release() { return std::exchange(fd_, -1); }
  // close(2)'s answer, which says whether what was written has arrived.
  int Close();

 private:
  int fd_ = -1;
};

// A regular file. `flags` are open(2)'s; O_CLOEXEC is added, and a new file gets mode 0644.
// Whatever else lies there is an error that says what it is, "PATH: expected a regular file, got: a
// FIFO", and is neither waited for nor read: kInvalidArgument for one that was to be read,
// kAlreadyExists for one that was to be written. With O_NOFOLLOW a symbolic link is such an error
// too.
Result<FileDescriptor> OpenFile(const std::string& path, int flags);

// Errors: kInvalidArgument for a path that no system call could be given. Pure.
Status CheckPath(std::string_view path);

// `max_bytes` guards against a wrong path: larger files are kResourceExhausted.
Result<std::string> ReadFile(const std::string& path, int64_t max_bytes = int64_t{1} << 30);

// Fills `out` with the bytes of `file` from `offset` on and says how many there were: fewer than
// asked for only where the file ends before. `path` is what errors name.
Result<size_t> ReadAt(const FileDescriptor& file, int64_t offset, std::span<std::byte> out,
                      const std::string& path);

// Writes `path`.tmp.<pid>, syncs, renames over `path`, syncs the folder: readers see the old bytes
// or the new ones.
Status WriteFileAtomically(const std::string& path, std::string_view bytes);

// Writes over what `path` holds now, for a file that cannot be renamed over, as one that is mounted
// by itself. A crash leaves it half-written.
Status WriteFileInPlace(const std::string& path, std::string_view bytes);

// Makes the names in `folder` as durable as the files.
Status SyncFolder(const std::string& folder);

// Makes the folder and its parents.
Status MakeDirectories(const std::string& path);

// The Status for an errno: "PATH: what: strerror".
Status ErrnoStatus(int error, std::string_view what, std::string_view path);

}  // namespace meshtrain
