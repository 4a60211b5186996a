// What a plain scalar means to kubectl, whose reader knows YAML 1.1 (sigs.k8s.io/yaml): 0400 and
// 0o400 are 256, yes and on are true, 1_000 is 1000. Pod templates are read so, since what stands
// there is Kubernetes' and is often copied from files that kubectl has applied.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "runtime/base/status.h"
#include "runtime/manifest/node.h"

namespace meshtrain::manifest {

using KubectlScalar = std::variant<bool, int64_t, double, std::string>;
// Of a scalar; of a quoted one its text. Errors: kInvalidArgument for a whole number beyond 64
// bits, which kubectl rounds, and for numbers that are not finite, which it refuses.
Result<KubectlScalar> AsKubectl(const Node& scalar);

std::optional<bool> AsKubectlBool(const Node& node);  // nothing when it is of another kind

}  // namespace meshtrain::manifest
