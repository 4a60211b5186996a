// Why something is so, in one word: the reasons of conditions and events, the labels of metrics and
// the table in docs/operator.md are all this enum.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace meshtrain::api {

enum class Reason : uint8_t {
  // The life of a job.
  kJobCreated,
  kManifestWarning,
  kJobRunning,
  kJobRestarting,
  kJobSuspended,
  kJobResumed,
  kQueued,
  kAdmitted,
  kJobSucceeded,
  kJobFailed,
  kJobFinished,
  // Why it failed.
  kInvalidSpec,
  kPodFailed,
  kBackoffLimitExceeded,
  kRestartBudgetExceeded,
  kDeadlineExceeded,
  kStartupDeadlineExceeded,
  // Why processes restart.
  kPodDisrupted,
  kPodLost,
  kRestartAll,
  kClusterChanged,
  kChildLost,
  // What it waits for, the most telling first: of several the condition names the first of these.
  kNameTaken,
  kNameHeld,
  kQuotaExceeded,
  kForbidden,
  kRefused,
  kServerError,
  kNodeNotReady,
  kPodDoesNotEnd,
  kPodGroupPending,
  kFormerProcesses,
  kRestartBackoff,
  kUnschedulable,
  kImagePull,
  kCrashLoop,
  kContainerWaits,
  kSlowStart,
  kOtherScheduler,
  kNotWaiting,
  // How training goes.
  kNoProgress,
  kMoving,
  kJobStalled,
  kSlowReplica,
  kEvenReplicas,
};

struct ReasonInfo {
  Reason reason;
  std::string_view name;     // "QuotaExceeded"
  std::string_view meaning;  // one sentence
  std::string_view advice;   // what the user can do, in one line; empty where there is nothing to
};
// All of them, in the enum's order.
std::span<const ReasonInfo> Reasons();
std::string_view ReasonName(Reason reason);
std::optional<Reason> ParseReason(std::string_view name);

}  // namespace meshtrain::api
