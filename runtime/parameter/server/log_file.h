// The push log on a disk: a folder of segments, push-00000001.log and so on, each a file of records
// (push_log.h). Errors are base/file.h's, naming the path.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "runtime/parameter/server/push_log.h"

namespace meshtrain::parameter {

struct Segment {
  int64_t number = 0;
  std::string path;
  friend bool operator==(const Segment&, const Segment&) = default;
};
std::string SegmentPath(const std::string& folder, int64_t number);
// Oldest first; empty where there is no folder.
Result<std::vector<Segment>> ListSegments(const std::string& folder);
Status RemoveFile(const std::string& path);  // one that is not there is no error

// Not thread-safe.
class LogWriter {
 public:
  // A new file; its name is durable on return.
  static Result<std::unique_ptr<LogWriter>> Create(const std::string& path);
  // Goes on at byte `end`, where the last sound record ends; what stands behind is cut off.
  static Result<std::unique_ptr<LogWriter>> Reopen(const std::string& path, int64_t end);
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // One record, not durable before Sync. After an error (disk full) the file is as it was before,
  // and the next call may succeed.
  Status Write(std::string_view head, std::span<const Bytes> payload);
  // All records so far are on the disk. An error is final, here and in every later call: nobody can
  // tell what the disk holds then.
  Status Sync();

  const std::string& path() const { return path_; }
  int64_t bytes() const { return end_; }

 private:
  LogWriter(std::string path, FileDescriptor file, int64_t end)
      : path_(std::move(path)), file_(std::move(file)), end_(end), synced_(end) {}
  std::string path_;
  FileDescriptor file_;
  int64_t end_;
  int64_t synced_;
  Status broken_;
};

// A file's bytes while this lives.
class MappedFile {
 public:
  static Result<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  Bytes bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  const std::byte* data_;
  size_t size_;
};

}  // namespace meshtrain::parameter
