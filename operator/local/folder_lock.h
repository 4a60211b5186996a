// One run writes to a folder at a time.
//
// The file `run.lock` in it is locked (flock(2)) for as long as the run, or a guardian of one of
// its processes, lives; the kernel takes the lock back however they end. The file stays: to remove
// it would let two runs lock two files of that name.
#pragma once

#include <chrono>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/file.h"
#include "runtime/base/status.h"

namespace meshtrain::local {

class FolderLock {
 public:
  // Waits up to `patience` for a holder that is just ending. Errors: kAlreadyExists, naming the
  // holder, "runs/mlp: expected a folder that no run writes to, got: one of process 4711 since
  // 2026-11-23T22:00:00Z"; base/file.h's.
  static Result<FolderLock> Take(const std::string& folder,
                                 Duration patience = std::chrono::seconds(2));

 private:
  explicit FolderLock(FileDescriptor file) : file_(std::move(file)) {}
  FileDescriptor file_;
};

}  // namespace meshtrain::local
