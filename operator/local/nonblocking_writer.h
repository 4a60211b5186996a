// Writing to a terminal, a pipe or a file that may not take it just now, without ever waiting in a
// write: what is not taken is kept until poll(2) says that there is room.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/status.h"

namespace meshtrain::local {

// Not thread-safe. The descriptor stays the caller's and stays blocking: others may share it.
class NonblockingWriter {
 public:
  explicit NonblockingWriter(int fd) : fd_(fd) {}

  void Write(std::string_view bytes) {
    if (bytes.empty() || broken_) return;
    pending_ += bytes;
    last_ = bytes.back();
  }
  // A whole line, on a line of its own even when somebody's unfinished one stands before it.
  void WriteLine(std::string_view line);

  bool wants_room() const { return !pending_.empty(); }
  // So much is waiting that whoever writes more should be made to wait.
  bool full() const { return pending_.size() > kFull; }
  // Writes what can be written at once. Call it when poll said POLLOUT, or to try.
  void Flush();
  // Waits for room up to so long.
  void FlushFor(int milliseconds);
  int fd() const { return fd_; }

 private:
  static constexpr size_t kFull = 64 << 10;
  const int fd_;
  std::string pending_;
  char last_ = '\n';     // the last byte that went into pending_
  bool broken_ = false;  // nobody reads any more
};

// Cuts what comes in pieces into lines. A line longer than 64 KiB comes in parts.
class LineCutter {
 public:
  void Add(std::string_view bytes, const std::function<void(std::string_view line)>& each);
  // The rest, which has no end.
  void Finish(const std::function<void(std::string_view line)>& each);

 private:
  static constexpr size_t kLongest = 64 << 10;
  std::string rest_;
};

// A file that lines are appended to.
class LogFile {
 public:
  // Makes the file, or goes on with it. Errors: those of files.
  static Result<LogFile> Open(const std::string& path);
  // A full disk loses lines and stops nothing.
  void Write(std::string_view bytes);

 private:
  explicit LogFile(FileDescriptor file) : file_(std::move(file)) {}
  FileDescriptor file_;
};

}  // namespace meshtrain::local
