// Why a pod does not start, in the words that people look for.
#include <algorithm>
#include <array>

#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {
namespace {

constexpr size_t kLongestMessage = 200;
constexpr std::chrono::seconds kSlow{60};

// Container states' waiting.reason (kubelet: pkg/kubelet/images/types.go, kuberuntime).
constexpr std::array<std::string_view, 7> kImageReasons = {
    "ErrImagePull",      "ImagePullBackOff",    "InvalidImageName",         "ErrImageNeverPull",
    "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"};

bool IsNormal(const std::string& reason) {
  return reason.empty() || reason == "ContainerCreating" || reason == "PodInitializing";
}

Reason Kind(const std::string& reason) {
  if (reason == "Unschedulable") return Reason::kUnschedulable;
  if (reason == "CrashLoopBackOff") return Reason::kCrashLoop;
  const bool image =
      std::find(kImageReasons.begin(), kImageReasons.end(), reason) != kImageReasons.end();
  return image ? Reason::kImagePull : Reason::kContainerWaits;
}

}  // namespace

std::optional<TimePoint> SlowFrom(const PodSeen& pod) {
  const bool starts = pod.phase == PodPhase::kPending && !pod.delete_requested &&
                      IsNormal(pod.waiting_reason) && pod.starting_since;
  return starts ? std::optional(*pod.starting_since + Duration(kSlow)) : std::nullopt;
}

std::optional<PodTrouble> TroubleOf(const View& view, const PodSeen& pod) {
  if (pod.delete_requested || pod.phase == PodPhase::kSucceeded || pod.phase == PodPhase::kFailed) {
    return std::nullopt;
  }
  if (!IsNormal(pod.waiting_reason)) {
    std::string message = pod.name + ": " + pod.waiting_reason;
    if (!pod.waiting_message.empty()) message += ": " + Tidy(pod.waiting_message, kLongestMessage);
    const Reason kind = Kind(pod.waiting_reason);
    // The kubelet says how long it waits, the program why.
    if (kind == Reason::kCrashLoop && pod.last_exit_code) {
      message += "; it ended with exit code " + std::to_string(*pod.last_exit_code);
      if (const std::string line = LastLine(pod); !line.empty()) message += ": " + line;
    }
    return PodTrouble{kind, std::move(message)};
  }
  const auto slow = SlowFrom(pod);
  if (!slow || view.now < *slow) return std::nullopt;
  const std::string volumes =
      pod.volumes.empty() ? "" : " (" + Tidy(pod.volumes, kLongestMessage) + ")";
  return PodTrouble{Reason::kSlowStart,
                    pod.name + " has been on its node " + pod.node +
                        " for a minute or more and has not started: a volume" + volumes +
                        " may not mount, or the network may not be ready (kubectl describe pod " +
                        pod.name + ")"};
}

}  // namespace meshtrain::reconcile
