// The phase of a job: one word for people, in the column PHASE and as a label of metrics.
#pragma once

#include <array>

#include "operator/api/training_job.h"

namespace meshtrain::api {

// The phase is the name of the first of these conditions that is true. kPending where none is, and
// kNew before the first status; kQueued in place of Suspended where a queue holds the job back.
inline constexpr std::array kPhases = {ConditionType::kFailed,    ConditionType::kSucceeded,
                                       ConditionType::kSuspended, ConditionType::kRestarting,
                                       ConditionType::kStalled,   ConditionType::kRunning,
                                       ConditionType::kWaiting};
inline constexpr const char* kPending = "Pending";
inline constexpr const char* kQueued = "Queued";
inline constexpr const char* kNew = "New";

}  // namespace meshtrain::api
