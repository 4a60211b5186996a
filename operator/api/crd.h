// The CustomResourceDefinition, generated from the same tables that FromJson (schema.h) and
// Validate (rules.h) use.
#pragma once

#include <string>

namespace meshtrain::api {

// The object as JSON, indented by two, ending in a line feed: deploy/crd and `kubectl apply` take
// it as it is.
std::string CrdJson();
// The same as YAML, for people and for helm's crds folder.
std::string CrdYaml();

}  // namespace meshtrain::api
