// Errors of this process's own files, kept apart from those of its team. Both may be kUnavailable
// or kDeadlineExceeded; but a lost peer comes back, and a disk that fails stays as it is: who joins
// again because of it rolls everybody back, and fails the same way at the next save.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace meshtrain::saving {

// `status` of work on files alone: the same, but never one that Team::IsLoss takes for
// a lost peer. What it took for one becomes kUnknown, which leads to the exit code 74.
Status OfFiles(const Status& status);
template <typename T>
Result<T> OfFiles(Result<T> result) {
  if (result.ok()) return result;
  return OfFiles(result.status());
}

// What checkpoint::AsyncSaver says: a save that was abandoned (kCancelled) is one whose other parts
// were lost with their process, kUnavailable; all else is OfFiles.
Status OfSaving(const Status& status);

// An error as text for the other processes, "" for OK, and what they make of it: the same code, so
// that all leave with the same exit code, and `who` in front of the message.
std::string TellFailure(const Status& status);
Status ToldFailure(const std::string& who, std::string_view text);

}  // namespace meshtrain::saving
