#include "runtime/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace meshtrain {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int Close() {
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd);
  }

 private:
  int fd_;
};

Status WriteAndSync(const std::string& path, std::string_view bytes) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) return ErrnoStatus(errno, "cannot create", path);
  while (!bytes.empty()) {
    const ssize_t n = ::write(file.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "cannot write", path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  if (::fsync(file.get()) != 0) return ErrnoStatus(errno, "cannot sync", path);
  if (file.Close() != 0) return ErrnoStatus(errno, "cannot close", path);
  return OkStatus();
}

}  // namespace

Status ErrnoStatus(int error, std::string_view what, std::string_view path) {
  std::string message = std::string(path) + ": " + std::string(what) + ": " + std::strerror(error);
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
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return ErrnoStatus(errno, "cannot open", path);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, "cannot stat", path);
  if (S_ISDIR(info.st_mode)) return InvalidArgument(path + ": expected a file, got: a folder");
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
      return ResourceExhausted(path + ": expected at most " + std::to_string(max_bytes) +
                               " bytes, got: more");
    }
  }
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
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return ErrnoStatus(errno, "cannot open", folder);
  if (::fsync(directory.get()) != 0) return ErrnoStatus(errno, "cannot sync", folder);
  return OkStatus();
}

Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), "cannot make folder", path);
  return OkStatus();
}

}  // namespace meshtrain
