#include "runtime/parameter/server/log_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "runtime/base/file.h"
#include "runtime/base/text.h"

namespace meshtrain::parameter {
namespace {

constexpr std::string_view kPrefix = "push-";
constexpr std::string_view kSuffix = ".log";

// All of `pieces`, from byte `at`.
Status WriteAll(int fd, std::vector<iovec> pieces, int64_t at, const std::string& path) {
  size_t first = 0;
  while (first < pieces.size()) {
    const int count = static_cast<int>(std::min<size_t>(pieces.size() - first, IOV_MAX));
    const ssize_t n = ::pwritev(fd, pieces.data() + first, count, at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "cannot write", path);
    at += n;
    auto left = static_cast<size_t>(n);
    while (first < pieces.size() && left >= pieces[first].iov_len) left -= pieces[first++].iov_len;
    if (left > 0) {
      pieces[first].iov_base = static_cast<char*>(pieces[first].iov_base) + left;
      pieces[first].iov_len -= left;
    }
  }
  return OkStatus();
}

}  // namespace

std::string SegmentPath(const std::string& folder, int64_t number) {
  char name[40];
  std::snprintf(name, sizeof name, "/push-%08lld.log", static_cast<long long>(number));
  return folder + name;
}

Result<std::vector<Segment>> ListSegments(const std::string& folder) {
  std::vector<Segment> segments;
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error), end;
  if (error == std::errc::no_such_file_or_directory) return segments;
  for (; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const auto number =
        ParseInt(name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size()));
    if (number) segments.push_back({*number, it->path().string()});
  }
  if (error) return ErrnoStatus(error.value(), "cannot list", folder);
  std::sort(segments.begin(), segments.end(),
            [](const Segment& a, const Segment& b) { return a.number < b.number; });
  return segments;
}

Status RemoveFile(const std::string& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return OkStatus();
  return ErrnoStatus(errno, "cannot remove", path);
}

Result<std::unique_ptr<LogWriter>> LogWriter::Create(const std::string& path) {
  MT_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_WRONLY | O_CREAT | O_EXCL));
  auto writer = std::unique_ptr<LogWriter>(new LogWriter(path, std::move(file), 0));
  MT_RETURN_IF_ERROR(SyncFolder(std::filesystem::path(path).parent_path().string()));
  return writer;
}

Result<std::unique_ptr<LogWriter>> LogWriter::Reopen(const std::string& path, int64_t end) {
  MT_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_WRONLY));
  auto writer = std::unique_ptr<LogWriter>(new LogWriter(path, std::move(file), end));
  if (::ftruncate(writer->file_.get(), end) != 0) return ErrnoStatus(errno, "cannot cut off", path);
  MT_RETURN_IF_ERROR(writer->Sync());
  return writer;
}

Status LogWriter::Write(std::string_view head, std::span<const Bytes> payload) {
  if (!broken_.ok()) return broken_;
  const auto front = RecordHead(head, payload, synced_);
  static constexpr std::byte kZeros[8] = {};
  std::vector<iovec> pieces;
  size_t bytes = 0;
  const auto add = [&](const void* at, size_t size) {
    if (size > 0) pieces.push_back({const_cast<void*>(at), size});
  };
  add(front.data(), front.size());
  add(head.data(), head.size());
  for (const Bytes& piece : payload) {
    add(piece.data(), piece.size());
    bytes += piece.size();
  }
  const size_t padding = RecordPadding(head.size(), bytes);
  add(kZeros, padding);
  const Status written = WriteAll(file_.get(), std::move(pieces), end_, path_);
  if (!written.ok()) {
    if (::ftruncate(file_.get(), end_) != 0) broken_ = ErrnoStatus(errno, "cannot cut off", path_);
    return written;
  }
  end_ += static_cast<int64_t>(front.size() + head.size() + bytes + padding);
  return OkStatus();
}

Status LogWriter::Sync() {
  if (!broken_.ok()) return broken_;
  if (::fdatasync(file_.get()) != 0) {
    broken_ = ErrnoStatus(errno, "cannot sync", path_);
    return broken_;
  }
  synced_ = end_;
  return OkStatus();
}

Result<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  MT_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(path, O_RDONLY));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, "cannot stat", path);
  const auto size = static_cast<size_t>(info.st_size);
  void* const at =
      size == 0 ? nullptr : ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, "cannot map", path);
  return std::unique_ptr<MappedFile>(new MappedFile(static_cast<const std::byte*>(at), size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace meshtrain::parameter
