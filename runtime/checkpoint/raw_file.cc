#include "runtime/checkpoint/raw_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace meshtrain::checkpoint {

Result<std::unique_ptr<RawReader>> RawReader::Open(const std::string& path) {
  MT_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_RDONLY));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, "cannot stat", path);
  return std::unique_ptr<RawReader>(new RawReader(path, std::move(file), info.st_size));
}

Status RawReader::ReadAt(int64_t offset, std::span<std::byte> out) const {
  MT_ASSIGN_OR_RETURN(const size_t n, meshtrain::ReadAt(file_, offset, out, path_));
  if (n == out.size()) return OkStatus();
  return DataLoss(path_ + ": byte " + std::to_string(offset + static_cast<int64_t>(n)) +
                  ": expected " + std::to_string(out.size() - n) + " more bytes, got: end of file");
}

Result<std::unique_ptr<RawWriter>> RawWriter::Create(const std::string& path) {
  MT_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC));
  return std::unique_ptr<RawWriter>(new RawWriter(path, std::move(file)));
}

RawWriter::~RawWriter() {
  if (file_.get() < 0) return;
  ::unlink(path_.c_str());
}

Status RawWriter::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
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
  if (::fsync(file_.get()) != 0) return ErrnoStatus(errno, "cannot sync", path_);
  if (file_.Close() != 0) return ErrnoStatus(errno, "cannot close", path_);
  return OkStatus();
}

}  // namespace meshtrain::checkpoint
