#include "operator/kube/json_slice.h"

#include <cstring>

namespace meshtrain::kube {
namespace {

size_t SkipSpace(std::string_view text, size_t at) {
  while (at < text.size() &&
         (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r')) {
    ++at;
  }
  return at;
}

// `at` stands on a quote; returns the place behind the closing one, or npos.
size_t SkipString(std::string_view text, size_t at) {
  const size_t begin = ++at;
  while (true) {
    const size_t quote = text.find('"', at);
    if (quote == std::string_view::npos) return quote;
    // An odd number of backslashes before it makes it part of the string.
    size_t slashes = 0;
    while (quote - slashes > begin && text[quote - slashes - 1] == '\\') ++slashes;
    if (slashes % 2 == 0) return quote + 1;
    at = quote + 1;
  }
}

// The place behind the value that starts at `at`, or npos.
size_t SkipValue(std::string_view text, size_t at) {
  if (at >= text.size()) return std::string_view::npos;
  if (text[at] == '"') return SkipString(text, at);
  if (text[at] == '{' || text[at] == '[') {
    int depth = 0;
    while (at < text.size()) {
      switch (text[at]) {
        case '"':
          at = SkipString(text, at);
          if (at == std::string_view::npos) return at;
          continue;
        case '{':
        case '[':
          ++depth;
          break;
        case '}':
        case ']':
          if (--depth == 0) return at + 1;
          break;
        default:
          break;
      }
      ++at;
    }
    return std::string_view::npos;
  }
  const size_t begin = at;
  while (at < text.size() && !std::strchr(",]} \n\t\r", text[at])) ++at;
  return at == begin ? std::string_view::npos : at;
}

}  // namespace

bool ForEachMember(std::string_view object,
                   const std::function<bool(std::string_view key, std::string_view value)>& visit) {
  size_t at = SkipSpace(object, 0);
  if (at >= object.size() || object[at] != '{') return false;
  at = SkipSpace(object, at + 1);
  if (at < object.size() && object[at] == '}') return true;
  while (true) {
    if (at >= object.size() || object[at] != '"') return false;
    const size_t key_end = SkipString(object, at);
    if (key_end == std::string_view::npos) return false;
    const std::string_view key = object.substr(at + 1, key_end - at - 2);
    at = SkipSpace(object, key_end);
    if (at >= object.size() || object[at] != ':') return false;
    at = SkipSpace(object, at + 1);
    const size_t value_end = SkipValue(object, at);
    if (value_end == std::string_view::npos) return false;
    if (!visit(key, object.substr(at, value_end - at))) return true;
    at = SkipSpace(object, value_end);
    if (at >= object.size()) return false;
    if (object[at] == '}') return true;
    if (object[at] != ',') return false;
    at = SkipSpace(object, at + 1);
  }
}

bool ForEachElement(std::string_view array,
                    const std::function<bool(std::string_view element)>& visit) {
  size_t at = SkipSpace(array, 0);
  if (at >= array.size() || array[at] != '[') return false;
  at = SkipSpace(array, at + 1);
  if (at < array.size() && array[at] == ']') return true;
  while (true) {
    const size_t end = SkipValue(array, at);
    if (end == std::string_view::npos) return false;
    if (!visit(array.substr(at, end - at))) return true;
    at = SkipSpace(array, end);
    if (at >= array.size()) return false;
    if (array[at] == ']') return true;
    if (array[at] != ',') return false;
    at = SkipSpace(array, at + 1);
  }
}

std::string_view Slice(std::string_view object, std::initializer_list<std::string_view> path) {
  std::string_view value = object;
  for (std::string_view wanted : path) {
    std::string_view found;
    ForEachMember(value, [&](std::string_view key, std::string_view member) {
      if (key != wanted) return true;
      found = member;
      return false;
    });
    if (found.empty()) return {};
    value = found;
  }
  return value;
}

std::string_view SliceString(std::string_view object,
                             std::initializer_list<std::string_view> path) {
  const std::string_view value = Slice(object, path);
  if (value.size() < 2 || value.front() != '"' || value.find('\\') != std::string_view::npos) {
    return {};
  }
  return value.substr(1, value.size() - 2);
}

}  // namespace meshtrain::kube
