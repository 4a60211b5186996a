// The CustomResourceDefinition, generated from the same tables that FromJson (schema.h) and
// Validate (rules.h) use.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace meshtrain::api {

// The object as JSON, indented by two, ending in a line feed: deploy/crd and `kubectl apply` take
// it as it is.
std::string CrdJson();
// The same as YAML, for people and for helm's crds folder.
std::string CrdYaml();

// The fields of ours that a CRD, as JSON, does not have: "status.security". An API server cuts off
// what its CRD does not know. Of several missing ones below a missing one, that one. Errors:
// kInvalidArgument for what is no CRD with our version.
Result<std::vector<std::string>> MissingInCrd(std::string_view crd);

}  // namespace meshtrain::api
