#include "runtime/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "runtime/base/text.h"

namespace meshtrain {
namespace {

// What people call it.
std::string_view KindName(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR:
      return "a folder";
    case S_IFIFO:
      return "a FIFO";
    case S_IFSOCK:
      return "a socket";
    case S_IFCHR:
    case S_IFBLK:
      return "a device";
    case S_IFLNK:
      return "a symbolic link";
    default:
      return "something else";
  }
}

Status NoRegularFile(const std::string& path, mode_t mode, bool writes) {
  std::string message =
      Printable(path) + ": expected a regular file, got: " + std::string(KindName(mode));
  return writes ? AlreadyExists(std::move(message)) : InvalidArgument(std::move(message));
}

Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "cannot write", path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return OkStatus();
}

Status WriteAndSync(const std::string& path, std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(FileDescriptor file,
                      OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW));
  MT_RETURN_IF_ERROR(WriteAll(file.get(), bytes, path));
  if (::fsync(file.get()) != 0) return ErrnoStatus(errno, "cannot sync", path);
  if (file.Close() != 0) return ErrnoStatus(errno, "cannot close", path);
  return OkStatus();
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int FileDescriptor::Close() { return ::close(Release()); }

Status CheckPath(std::string_view path) {
  if (path.find('\0') == std::string_view::npos) return OkStatus();
  return InvalidArgument(Excerpt(path) + ": expected a path without NUL bytes, got: one with");
}

Result<FileDescriptor> OpenFile(const std::string& path, int flags) {
  MT_RETURN_IF_ERROR(CheckPath(path));
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  // O_NONBLOCK: a FIFO without its other end is not waited for. It means nothing to regular files.
  FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644));
  struct stat info {};
  if (file.get() < 0) {
    const int error = errno;
    // What open(2) says of a folder, of a FIFO without a reader and of a socket when they are to be
    // written, and of a link that it may not follow.
    const bool other_kind = error == EISDIR || error == ENXIO || error == ENODEV ||
                            (error == ELOOP && (flags & O_NOFOLLOW) != 0);
    if (other_kind && ::lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
      const bool link = S_ISLNK(info.st_mode) && (flags & O_NOFOLLOW) == 0;
      if (!link || ::stat(path.c_str(), &info) == 0) {
        return NoRegularFile(path, info.st_mode, writes);
      }
    }
    return ErrnoStatus(error, (flags & O_CREAT) != 0 ? "cannot create" : "cannot open", path);
  }
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, "cannot stat", path);
  if (!S_ISREG(info.st_mode)) return NoRegularFile(path, info.st_mode, writes);
  return file;
}

Status ErrnoStatus(int error, std::string_view what, std::string_view path) {
  std::string message = Printable(path) + ": " + std::string(what) + ": " + std::strerror(error);
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ENAMETOOLONG:
      return NotFound(std::move(message));
    // What lies there is something else, and stays so: trying again cannot help.
    case EISDIR:
    case ELOOP:
    case EEXIST:
      return AlreadyExists(std::move(message));
    case EACCES:
    case EPERM:
    case EROFS:
      return PermissionDenied(std::move(message));
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ResourceExhausted(std::move(message));
    default:
      return Unavailable(std::move(message));
  }
}

Result<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  MT_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(path, O_RDONLY));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, "cannot stat", path);
  std::string text;
  if (info.st_size > 0 && info.st_size <= max_bytes) {
    text.reserve(static_cast<size_t>(info.st_size));
  }
  char block[65536];
  for (;;) {
    const ssize_t n = ::read(file.get(), block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "cannot read", path);
    if (n == 0) return text;
    text.append(block, static_cast<size_t>(n));
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return ResourceExhausted(Printable(path) + ": expected at most " + std::to_string(max_bytes) +
                               " bytes, got: more");
    }
  }
}

Result<size_t> ReadAt(const FileDescriptor& file, int64_t offset, std::span<std::byte> out,
                      const std::string& path) {
  size_t done = 0;
  while (done < out.size()) {
    const int64_t at = offset + static_cast<int64_t>(done);
    const ssize_t n = ::pread(file.get(), out.data() + done, out.size() - done, at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "cannot read at byte " + std::to_string(at), path);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

Status WriteFileAtomically(const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".tmp." + std::to_string(::getpid());
  if (Status written = WriteAndSync(temporary, bytes); !written.ok()) {
    ::unlink(temporary.c_str());
    return written;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return ErrnoStatus(error, "cannot rename over", path);
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return SyncFolder(folder.empty() ? "." : folder);
}

Status WriteFileInPlace(const std::string& path, std::string_view bytes) {
  MT_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC));
  MT_RETURN_IF_ERROR(WriteAll(file.get(), bytes, path));
  return file.Close() == 0 ? OkStatus() : ErrnoStatus(errno, "cannot close", path);
}

Status SyncFolder(const std::string& folder) {
  MT_RETURN_IF_ERROR(CheckPath(folder));
  const FileDescriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return ErrnoStatus(errno, "cannot open", folder);
  if (::fsync(directory.get()) != 0) return ErrnoStatus(errno, "cannot sync", folder);
  return OkStatus();
}

Status MakeDirectories(const std::string& path) {
  MT_RETURN_IF_ERROR(CheckPath(path));
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), "cannot make folder", path);
  return OkStatus();
}

}  // namespace meshtrain
