// What went wrong with a checkpoint, told to the other processes of the job. Errors of this
// process's own files are kOutput; only a lost peer is one that Team::IsLoss takes for such. Both
// may be kUnavailable or kDeadlineExceeded; but a lost peer comes back, and a disk that fails stays
// as it is: who joins again because of it rolls everybody back, and fails the same way at the next
// save.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::saving {

// How long the processes of a job wait for each other's word on a checkpoint: a slow volume may
// take its time.
inline constexpr Duration kAgreeTimeout = std::chrono::minutes(10);

// What checkpoint::AsyncSaver says: a save that was abandoned (kCancelled) is one whose other parts
// were lost with their process, kUnavailable of kPeers; all else is kOutput.
Status OfSaving(const Status& status);

// An error as text for the other processes, "" for OK, and what they make of it: the same code and
// origin (as rpc/peer_error.h has it), so that all leave with the same exit code, and `who` in
// front of the message.
std::string TellFailure(const Status& status);
Status ToldFailure(const std::string& who, std::string_view text);

}  // namespace meshtrain::saving
