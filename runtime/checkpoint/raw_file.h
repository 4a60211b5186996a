// Files by byte ranges. Errors are base/file.h's, each naming the path and the byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/file.h"
#include "runtime/base/status.h"

namespace meshtrain::checkpoint {

// Reading at offsets; thread-safe.
class RawReader {
 public:
  static Result<std::unique_ptr<RawReader>> Open(const std::string& path);
  RawReader(const RawReader&) = delete;
  RawReader& operator=(const RawReader&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  // All of `out`, or an error: kDataLoss where the file ends before.
  Status ReadAt(int64_t offset, std::span<std::byte> out) const;

 private:
  RawReader(std::string path, FileDescriptor file, int64_t size)
      : path_(std::move(path)), file_(std::move(file)), size_(size) {}
  std::string path_;
  FileDescriptor file_;
  int64_t size_;
};

// Writing from the front; not thread-safe. Without Close() the file is incomplete and goes away.
class RawWriter {
 public:
  // Over whatever is there.
  static Result<std::unique_ptr<RawWriter>> Create(const std::string& path);
  ~RawWriter();
  RawWriter(const RawWriter&) = delete;
  RawWriter& operator=(const RawWriter&) = delete;

  int64_t position() const { return position_; }
  Status Write(std::span<const std::byte> bytes);
  // Syncs the file to the disk.
  Status Close();

 private:
  RawWriter(std::string path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}
  std::string path_;
  FileDescriptor file_;
  int64_t position_ = 0;
};

}  // namespace meshtrain::checkpoint
