// The small JSON that a chief answers under /progress and leaves in its termination message
// (runtime/telemetry/progress.h writes it; user images may too).
#pragma once

#include <optional>
#include <string_view>

#include "operator/reconcile/observed.h"

namespace meshtrain::reconcile {

// {"step":120,"totalSteps":400,"epoch":1.5,"loss":0.2,"accuracy":0.9,"examplesPerSecond":1000,"etaSeconds":3,
//  "checkpoint":{"step":100,"path":"…"},"plan":{"mesh":"…","peakBytesPerDevice":1,"collectiveBytesPerStep":1,"hash":"…"},
//  "stoppedRank":"worker-3","rankStepSeconds":[0.1,null]}; all but `step` may be absent, and what has the wrong type counts as
//  absent.
// nullopt where the text is no such object. Texts within it are cut to bounded lengths.
std::optional<ProgressSeen> ParseProgress(std::string_view text, TimePoint observed_at);

}  // namespace meshtrain::reconcile
