// TrainingJob's fields as data: name, type, range, spellings, default, description. FromJson checks
// and fills in by it, and the CRD's OpenAPI schema is printed from it, so that the two cannot
// disagree.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace meshtrain::api {

enum class FieldType : uint8_t {
  kObject,  // `fields` are its members
  kMap,     // `fields[0]` describes each value; keys are free
  kArray,   // `fields[0]` describes each item
  kString,
  kInt32,
  kInt64,
  kNumber,
  kBoolean,
  kTime,      // RFC 3339
  kQuantity,  // Kubernetes' resource.Quantity: an integer or a string
  kAny,       // of several types: what it may be, others check
};

struct Field {
  std::string_view name;
  FieldType type = FieldType::kObject;
  std::string_view description;
  std::vector<Field> fields = {};
  std::string_view default_json = "";  // JSON text
  std::optional<int64_t> minimum = std::nullopt;
  std::optional<int64_t> maximum = std::nullopt;
  std::vector<std::string_view> values = {};  // spellings allowed
  bool required = false;
  bool open = false;                               // an object that may hold more than `fields`
  std::optional<int64_t> max_size = std::nullopt;  // of strings, arrays and maps
  int64_t min_size = 0;                            // of strings
};

// The whole object: metadata is not part of it (Kubernetes checks that).
const Field& SpecField();
const Field& StatusField();

}  // namespace meshtrain::api
