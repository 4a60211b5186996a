// A folder for what a run must not leave behind: the job's token, its cluster file, the last words
// of its processes.
//
// Kept true: only its owner may read it; it goes with the PrivateFolder; and where a run was killed
// (kill -9), the next run of the same user with the same parent folder removes what it left. To
// tell the two apart each folder is locked (flock(2)) for as long as its run, or a guardian of one
// of its processes, lives: the kernel takes the lock back however they end.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/file.h"
#include "runtime/base/status.h"

namespace meshtrain::local {

class PrivateFolder {
 public:
  // Makes PARENT/meshtrain-run-XXXXXX, after it has removed those of that name that belong to this
  // user and that nobody holds. Errors: base/file.h's.
  static Result<std::unique_ptr<PrivateFolder>> Create(const std::string& parent);
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  PrivateFolder(std::string path, FileDescriptor lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  FileDescriptor lock_;
};

}  // namespace meshtrain::local
