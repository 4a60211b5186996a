// Saving beside training: one thread writes, one snapshot at a time.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/save.h"

namespace meshtrain::checkpoint {

struct SaveReport {
  int64_t step = 0;
  std::string path;
  double seconds = 0;  // from Save() to the commit
};

// Called by one thread. Every wait ends with `timeout` (kDeadlineExceeded) or `stop` (kCancelled).
class AsyncSaver {
 public:
  // Without `background` Save() returns when the checkpoint is complete.
  static Result<std::unique_ptr<AsyncSaver>> Create(std::string folder, SaveOptions options,
                                                    bool background = true);
  // Waits for a save that is being written; without Close() its error is only logged.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Waits for the save before this one, then hands the snapshot over. If that save failed, its
  // error comes back here and this snapshot is not saved: decide, and call again. Errors: also
  // CheckFinite's, at once.
  Status Save(Snapshot snapshot, std::stop_token stop = {},
              Duration timeout = std::chrono::minutes(10));
  // For the saves to come: see SaveOptions::generation. Between saves.
  void set_generation(int64_t generation);
  // SaveOptions::replaces of the next save that succeeds. Between saves.
  void set_replaces(std::vector<std::string> checkpoints);
  // SaveOptions::pinned and SaveOptions::notes of the saves to come. Between saves.
  void set_pinned(std::optional<int64_t> step);
  void set_notes(std::map<std::string, std::string> notes);
  // The others are gone: a save of this generation that still waits for their parts ends in
  // kCancelled. From any thread, but not beside set_generation.
  void Abandon();
  // Waits until nothing is being written; gives the last save's error, once.
  Status Wait(std::stop_token stop = {}, Duration timeout = std::chrono::minutes(10));
  // Wait(), and takes no more snapshots.
  Status Close(Duration timeout = std::chrono::minutes(10));

  // The newest save that succeeded, and how many came to nothing. Thread-safe.
  std::optional<SaveReport> last() const;
  int64_t failures() const;

 private:
  class Impl;
  explicit AsyncSaver(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::checkpoint
