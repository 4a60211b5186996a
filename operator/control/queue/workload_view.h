// What Kueue's objects say, as far as decisions read it: texts of the API server -> values. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "operator/kube/client.h"
#include "operator/reconcile/queue_seen.h"
#include "runtime/base/status.h"

namespace meshtrain::control {

kube::Resource Workloads();
kube::Resource ResourceFlavors();
kube::Resource WorkloadPriorityClasses();
kube::Resource PriorityClasses();

struct Workload {
  std::string job_key;  // "namespace/name" of the job that it belongs to
  reconcile::WorkloadSeen seen;
  friend bool operator==(const Workload&, const Workload&) = default;
};

// Errors: kInvalidArgument for text that is no object of that kind.
Result<reconcile::WorkloadSeen> ParseWorkload(std::string_view text);
// Of objects that belong to no namespace, with their names.
Result<std::pair<std::string, reconcile::FlavorSeen>> ParseFlavor(std::string_view text);
// Of both kinds of classes.
Result<std::pair<std::string, reconcile::PriorityClassSeen>> ParsePriorityClass(
    std::string_view text);

}  // namespace meshtrain::control
