#include "runtime/checkpoint/raw_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "runtime/base/file.h"

namespace meshtrain::checkpoint {

Result<std::unique_ptr<RawReader>> RawReader::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "cannot open", path);
  std::unique_ptr<RawReader> reader(new RawReader(path, fd, 0));
  struct stat info {};
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, "cannot stat", path);
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgument(path + ": expected a regular file, got: something else");
  }
  reader->size_ = info.st_size;
  return reader;
}

RawReader::~RawReader() { ::close(fd_); }

Status RawReader::ReadAt(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd_, out.data(), out.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "cannot read at byte " + std::to_string(offset), path_);
    if (n == 0) {
      return DataLoss(path_ + ": byte " + std::to_string(offset) + ": expected " +
                      std::to_string(out.size()) + " more bytes, got: end of file");
    }
    out = out.subspan(static_cast<size_t>(n));
    offset += n;
  }
  return OkStatus();
}

Result<std::unique_ptr<RawWriter>> RawWriter::Create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, "cannot create", path);
  return std::unique_ptr<RawWriter>(new RawWriter(path, fd));
}

RawWriter::~RawWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(path_.c_str());
}

Status RawWriter::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return ErrnoStatus(errno, "cannot write at byte " + std::to_string(position_), path_);
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
    position_ += n;
  }
  return OkStatus();
}

Status RawWriter::Close() {
  if (::fsync(fd_) != 0) return ErrnoStatus(errno, "cannot sync", path_);
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) return ErrnoStatus(errno, "cannot close", path_);
  return OkStatus();
}

Status SyncFolder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "cannot open", folder);
  const int synced = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  return synced == 0 ? OkStatus() : ErrnoStatus(error, "cannot sync", folder);
}

}  // namespace meshtrain::checkpoint
