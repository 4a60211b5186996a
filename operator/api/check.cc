#include "operator/api/check.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"

namespace meshtrain::api {
namespace {

using Json = nlohmann::json;
using Problems = std::vector<FieldError>;

std::string Got(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return ", got: " + text;
}

std::string Sub(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : path + "." + std::string(name);
}

bool Absent(const Json& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null();
}

void CheckSpelling(const Json& value, const Field& field, const std::string& path,
                   Problems* problems) {
  const std::string& text = value.get_ref<const std::string&>();
  if (static_cast<int64_t>(text.size()) < field.min_size) {
    // In the API server's words: should be at least 1 chars long.
    problems->push_back({path, "should be at least " + std::to_string(field.min_size) +
                                   " chars long" + Got(value)});
  }
  if (field.max_size && static_cast<int64_t>(text.size()) > *field.max_size) {
    problems->push_back({path, "must be at most " + std::to_string(*field.max_size) +
                                   " bytes long, got: " + std::to_string(text.size())});
  }
  if (field.values.empty() ||
      std::find(field.values.begin(), field.values.end(), text) != field.values.end()) {
    return;
  }
  std::vector<std::string> known;
  for (const std::string_view name : field.values) {
    if (!name.empty()) known.emplace_back(name);
  }
  problems->push_back(
      {path, "must be one of " + Join(known, ", ") + Got(value) + DidYouMean(text, known)});
}

void CheckInteger(const Json& value, const Field& field, const std::string& path,
                  Problems* problems) {
  const int64_t type_max = field.type == FieldType::kInt32 ? INT32_MAX : INT64_MAX;
  const int64_t type_min = field.type == FieldType::kInt32 ? INT32_MIN : INT64_MIN;
  const int64_t low = field.minimum.value_or(type_min);
  const int64_t high = field.maximum.value_or(type_max);
  const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX};
  if (!huge && value.get<int64_t>() < low) {
    problems->push_back({path, "must be at least " + std::to_string(low) + Got(value)});
  } else if (huge || value.get<int64_t>() > high) {
    problems->push_back({path, "must be at most " + std::to_string(high) + Got(value)});
  }
}

// Fills in defaults and names what is wrong. Values of the wrong type are taken out, so that later
// reading may trust the types that it finds.
void Apply(Json* value, const Field& field, const std::string& path, Problems* problems);

void ApplyObject(Json* value, const Field& field, const std::string& path, Problems* problems) {
  std::vector<std::string> known;
  for (const Field& member : field.fields) known.emplace_back(member.name);
  if (!field.open) {
    for (const auto& [name, unused] : value->items()) {
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        problems->push_back({Sub(path, name), "is not a field" + DidYouMean(name, known)});
      }
    }
  }
  for (const Field& member : field.fields) {
    const std::string where = Sub(path, member.name);
    if (Absent(*value, member.name)) {
      value->erase(std::string(member.name));
      if (member.required) problems->push_back({where, "must be there, got: nothing"});
      if (member.default_json.empty()) continue;
      (*value)[std::string(member.name)] = Json::parse(member.default_json);
    }
    Json& child = (*value)[std::string(member.name)];
    Apply(&child, member, where, problems);
    if (child.is_null()) value->erase(std::string(member.name));
  }
}

void ApplyEach(Json* value, const Field& field, const std::string& path, Problems* problems) {
  if (field.max_size && static_cast<int64_t>(value->size()) > *field.max_size) {
    problems->push_back({path, "must have at most " + std::to_string(*field.max_size) +
                                   " entries, got: " + std::to_string(value->size())});
  }
  const bool list = value->is_array();
  Json kept = list ? Json::array() : Json::object();
  size_t position = 0;
  for (auto& [key, item] : value->items()) {
    const std::string where = list ? path + "[" + std::to_string(position++) + "]" : Sub(path, key);
    Json child = std::move(item);
    Apply(&child, field.fields.front(), where, problems);
    if (child.is_null()) continue;
    if (list) {
      kept.push_back(std::move(child));
    } else {
      kept[key] = std::move(child);
    }
  }
  *value = std::move(kept);
}

std::string_view Expected(FieldType type) {
  switch (type) {
    case FieldType::kObject:
    case FieldType::kMap:
      return "must be an object";
    case FieldType::kArray:
      return "must be a list";
    case FieldType::kString:
      return "must be a string";
    case FieldType::kInt32:
    case FieldType::kInt64:
      return "must be an integer";
    case FieldType::kNumber:
      return "must be a number";
    case FieldType::kBoolean:
      return "must be true or false";
    case FieldType::kTime:
      return "must be a time such as 2026-01-02T03:04:05Z";
    case FieldType::kQuantity:
      return "must be a quantity such as 500m or 2Gi";
    case FieldType::kAny:
      break;
  }
  return "?";
}

bool TypeFits(const Json& value, FieldType type) {
  switch (type) {
    case FieldType::kObject:
    case FieldType::kMap:
      return value.is_object();
    case FieldType::kArray:
      return value.is_array();
    case FieldType::kString:
      return value.is_string();
    case FieldType::kInt32:
    case FieldType::kInt64:
      return value.is_number_integer();
    case FieldType::kNumber:
      return value.is_number();
    case FieldType::kBoolean:
      return value.is_boolean();
    case FieldType::kTime:
      return value.is_string() && ParseTime(value.get_ref<const std::string&>()).has_value();
    case FieldType::kQuantity:
      return value.is_string() || value.is_number();
    case FieldType::kAny:
      return true;
  }
  return false;
}

void Apply(Json* value, const Field& field, const std::string& path, Problems* problems) {
  // 3.0 is an integer to people and to Kubernetes' YAML reader.
  if ((field.type == FieldType::kInt32 || field.type == FieldType::kInt64) &&
      value->is_number_float()) {
    const double number = value->get<double>();
    if (number == std::floor(number) && std::abs(number) < 1e15) {
      *value = static_cast<int64_t>(number);
    }
  }
  if (!TypeFits(*value, field.type)) {
    problems->push_back({path, std::string(Expected(field.type)) + Got(*value)});
    *value = nullptr;
    return;
  }
  switch (field.type) {
    case FieldType::kObject:
      ApplyObject(value, field, path, problems);
      return;
    case FieldType::kMap:
    case FieldType::kArray:
      ApplyEach(value, field, path, problems);
      return;
    case FieldType::kString:
      CheckSpelling(*value, field, path, problems);
      return;
    case FieldType::kInt32:
    case FieldType::kInt64:
      CheckInteger(*value, field, path, problems);
      return;
    default:
      return;
  }
}

}  // namespace

void ApplySchema(JsonRef value, const Field& field, const std::string& path,
                 std::vector<FieldError>* problems) {
  Apply(static_cast<Json*>(value.json), field, path, problems);
}

}  // namespace meshtrain::api
