// Checks a JSON value against the schema. Internal to operator/api.
#pragma once

#include <string>
#include <vector>

#include "operator/api/schema.h"
#include "operator/api/training_job.h"

namespace meshtrain::api {

// Points at an nlohmann::json, which stays out of headers.
struct JsonRef {
  void* json = nullptr;
};

// Fills in defaults and appends what is wrong. A value of the wrong type is taken out (at the root:
// made null), so that whoever reads on may trust the types that it finds.
void ApplySchema(JsonRef value, const Field& field, const std::string& path,
                 std::vector<FieldError>* problems);

}  // namespace meshtrain::api
