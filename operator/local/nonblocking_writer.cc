#include "operator/local/nonblocking_writer.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace meshtrain::local {

void NonblockingWriter::WriteLine(std::string_view line) {
  if (last_ != '\n') Write("\n");
  Write(line);
  Write("\n");
}

void NonblockingWriter::Flush() {
  while (!pending_.empty()) {
    pollfd room{.fd = fd_, .events = POLLOUT};
    if (::poll(&room, 1, 0) != 1) return;
    // A pipe with room takes PIPE_BUF bytes without waiting (pipe(7)).
    const ssize_t n = ::write(fd_, pending_.data(), std::min<size_t>(pending_.size(), PIPE_BUF));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n < 0) {
      broken_ = true;
      pending_.clear();
      return;
    }
    pending_.erase(0, static_cast<size_t>(n));
  }
}

void NonblockingWriter::FlushFor(int milliseconds) {
  Flush();
  while (!pending_.empty()) {
    pollfd room{.fd = fd_, .events = POLLOUT};
    if (::poll(&room, 1, milliseconds) != 1) return;
    Flush();
  }
}

void LineCutter::Add(std::string_view bytes,
                     const std::function<void(std::string_view line)>& each) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    if (end == std::string_view::npos) {
      rest_ += part;
      if (rest_.size() >= kLongest) Finish(each);
      return;
    }
    if (rest_.empty()) {
      each(part);
    } else {
      rest_ += part;
      Finish(each);
    }
    bytes.remove_prefix(end + 1);
  }
}

void LineCutter::Finish(const std::function<void(std::string_view line)>& each) {
  if (rest_.empty()) return;
  const std::string line = std::exchange(rest_, {});
  each(line);
}

Result<LogFile> LogFile::Open(const std::string& path) {
  MT_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_WRONLY | O_CREAT | O_APPEND));
  return LogFile(std::move(file));
}

void LogFile::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace meshtrain::local
