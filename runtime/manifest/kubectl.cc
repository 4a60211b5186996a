#include "runtime/manifest/kubectl.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "runtime/base/text.h"

namespace meshtrain::manifest {
namespace {

bool OneOf(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool AllDigits(std::string_view text, int base) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [base](char c) {
    const char lower = static_cast<char>(c | 0x20);
    const int digit = c >= '0' && c <= '9'           ? c - '0'
                      : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                     : 99;
    return digit < base;
  });
}

struct WholeText {
  std::string digits;  // with a sign before them
  int base = 10;
};

// As Go's strconv.ParseInt with base 0 takes it. Digits that are no octal ones behind a 0 are a
// decimal number to kubectl, which tries a float next.
std::optional<WholeText> Whole(std::string_view text) {
  WholeText out;
  if (text.starts_with('-')) out.digits = "-";
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  const std::string prefix = ToLower(text.substr(0, 2));
  if (prefix == "0x" || prefix == "0o" || prefix == "0b") {
    out.base = prefix == "0x" ? 16 : prefix == "0o" ? 8 : 2;
    text.remove_prefix(2);
  } else if (text.starts_with('0') && AllDigits(text, 8)) {
    out.base = 8;
  }
  if (!AllDigits(text, out.base)) return std::nullopt;
  out.digits += text;
  return out;
}

// [-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?
std::optional<double> Float(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  // from_chars reads inf, nan and signs, and a point alone is none.
  if (text.empty() || text.find_first_not_of("0123456789.eE+-") != std::string_view::npos ||
      OneOf(text.substr(0, 1), {"+", "-", "e", "E"}) || text.starts_with(".e") ||
      text.starts_with(".E")) {
    return std::nullopt;
  }
  const auto number = ParseDouble(text);
  if (!number || !std::isfinite(*number)) return std::nullopt;
  return negative ? -*number : *number;
}

}  // namespace

std::optional<bool> AsKubectlBool(const Node& node) {
  if (!node.IsScalar() || node.quoted) return std::nullopt;
  if (OneOf(node.scalar,
            {"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})) {
    return true;
  }
  if (OneOf(node.scalar,
            {"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})) {
    return false;
  }
  return std::nullopt;
}

Result<KubectlScalar> AsKubectl(const Node& scalar) {
  const std::string& given = scalar.scalar;
  if (scalar.quoted || given.empty()) return KubectlScalar(given);
  if (const auto flag = AsKubectlBool(scalar)) return KubectlScalar(*flag);
  std::string_view bare = given;
  if (bare.starts_with('-') || bare.starts_with('+')) bare.remove_prefix(1);
  if (OneOf(bare, {".inf", ".Inf", ".INF"}) || OneOf(given, {".nan", ".NaN", ".NAN"})) {
    return InvalidArgument("expected a finite number (or a text in quotes), got: " + given);
  }
  // What begins otherwise is a text, whatever follows.
  if (!OneOf(bare.substr(0, 1), {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "."})) {
    return KubectlScalar(given);
  }
  std::string plain = given;
  std::erase(plain, '_');
  if (const auto whole = Whole(plain)) {
    int64_t number = 0;
    const std::string& digits = whole->digits;
    const auto error =
        std::from_chars(digits.data(), digits.data() + digits.size(), number, whole->base).ec;
    if (error == std::errc()) return KubectlScalar(number);
    return InvalidArgument("expected a whole number of 64 bits (or a text in quotes), got: " +
                           Excerpt(given));
  }
  if (const auto number = Float(plain)) return KubectlScalar(*number);
  return KubectlScalar(given);
}

}  // namespace meshtrain::manifest
