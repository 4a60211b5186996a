#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "runtime/base/text.h"

namespace meshtrain::api {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 200;

std::string At(const YAML::Mark& mark) {
  if (mark.is_null()) return "yaml";
  return "line " + std::to_string(mark.line + 1) + ", column " + std::to_string(mark.column + 1);
}

bool AllIn(std::string_view text, std::string_view allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
}

// YAML 1.2's core schema for a plain scalar (https://yaml.org/spec/1.2.2/#103-core-schema).
Result<Json> PlainScalar(const std::string& text, const YAML::Mark& mark) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") {
    return Json();
  }
  if (text == "true" || text == "True" || text == "TRUE") return Json(true);
  if (text == "false" || text == "False" || text == "FALSE") return Json(false);
  const bool negative = text[0] == '-';
  const std::string_view digits = std::string_view(text).substr(negative || text[0] == '+' ? 1 : 0);
  int base = 0;
  std::string_view body = digits;
  if (AllIn(digits, "0123456789")) {
    base = 10;
  } else if (digits.starts_with("0x") && digits.size() == text.size() &&
             AllIn(digits.substr(2), "0123456789abcdefABCDEF")) {
    base = 16;
    body = digits.substr(2);
  } else if (digits.starts_with("0o") && digits.size() == text.size() &&
             AllIn(digits.substr(2), "01234567")) {
    base = 8;
    body = digits.substr(2);
  }
  if (base != 0) {
    const std::string number = (negative ? "-" : "") + std::string(body);
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), value, base);
    if (error == std::errc() && end == number.data() + number.size()) return Json(value);
    if (base == 10) {
      if (const auto wide = ParseDouble(number)) return Json(*wide);
    }
    return InvalidArgument(At(mark) + ": must be a number of at most 64 bits, got: " + text);
  }
  // [-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?
  if (AllIn(digits, "0123456789.eE+-") && digits.find_first_of("0123456789") <= 1 &&
      digits[0] != '+' && digits[0] != '-') {
    if (const auto value = ParseDouble((negative ? "-" : "") + std::string(digits));
        value && std::isfinite(*value)) {
      return Json(*value);
    }
  }
  if (digits == ".inf" || digits == ".Inf" || digits == ".INF" || text == ".nan" ||
      text == ".NaN" || text == ".NAN") {
    return InvalidArgument(At(mark) + ": must be a finite number, got: " + text);
  }
  return Json(text);
}

class Converter {
 public:
  explicit Converter(int64_t max_nodes) : left_(max_nodes), max_nodes_(max_nodes) {}

  Result<Json> Convert(const YAML::Node& node, int depth) {
    if (--left_ < 0) {
      return ResourceExhausted(At(node.Mark()) + ": must have at most " +
                               std::to_string(max_nodes_) +
                               " values with aliases followed, got: more");
    }
    if (depth > kMaxDepth) {
      return ResourceExhausted(At(node.Mark()) + ": must nest at most " +
                               std::to_string(kMaxDepth) + " deep, got: more");
    }
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        return Json();
      case YAML::NodeType::Scalar:
        return Scalar(node);
      case YAML::NodeType::Sequence: {
        Json out = Json::array();
        for (const auto& item : node) {
          MT_ASSIGN_OR_RETURN(Json value, Convert(item, depth + 1));
          out.push_back(std::move(value));
        }
        return out;
      }
      case YAML::NodeType::Map:
        return Map(node, depth);
    }
    return Json();
  }

 private:
  static Result<Json> Scalar(const YAML::Node& node) {
    const std::string& tag = node.Tag();
    if (tag == "!" || tag == "tag:yaml.org,2002:str") return Json(node.Scalar());
    return PlainScalar(node.Scalar(), node.Mark());
  }

  Result<Json> Map(const YAML::Node& node, int depth) {
    Json out = Json::object();
    Json merged = Json::object();
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        return InvalidArgument(At(entry.first.Mark()) + ": a key must be a scalar");
      }
      const std::string& key = entry.first.Scalar();
      MT_ASSIGN_OR_RETURN(Json value, Convert(entry.second, depth + 1));
      if (key == "<<" && entry.first.Tag() == "?") {
        const Json list = value.is_array() ? value : Json::array({value});
        for (const Json& map : list) {
          if (!map.is_object()) {
            return InvalidArgument(At(entry.first.Mark()) + ": << must name maps");
          }
          for (const auto& [name, inner] : map.items()) {
            if (!merged.contains(name)) merged[name] = inner;
          }
        }
        continue;
      }
      if (out.contains(key)) {
        return InvalidArgument(At(entry.first.Mark()) + ": must be given once, got: `" + key +
                               "` twice");
      }
      out[key] = std::move(value);
    }
    for (const auto& [name, inner] : merged.items()) {
      if (!out.contains(name)) out[name] = inner;
    }
    return out;
  }

  int64_t left_;
  int64_t max_nodes_;
};

}  // namespace

Result<std::string> YamlToJson(std::string_view text, int64_t max_nodes) {
  try {
    const YAML::Node root = YAML::Load(std::string(text));
    Converter converter(max_nodes);
    MT_ASSIGN_OR_RETURN(const Json json, converter.Convert(root, 0));
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  } catch (const YAML::Exception& error) {
    return InvalidArgument(At(error.mark) + ": " + error.msg);
  }
}

}  // namespace meshtrain::api
