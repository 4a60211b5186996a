// A step that computes its batch in parts, one after the other: the ops of each part are recorded
// under a name scope of the part's own, "part 2.hidden_1". A plan joins no op of one part to a
// chain of another, so that it can run them in the order of the parts and let the values of one
// make room for those of the next.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/program/program.h"

namespace meshtrain::program {

inline constexpr std::string_view kPart = "part ";
// Below a part's scope: what adds its gradients to those of the parts before it.
inline constexpr std::string_view kSumOfGradients = "sum of gradients";

// For Builder::NameScope; `part` from 1.
inline std::string PartScope(int64_t part) { return std::string(kPart) + std::to_string(part); }

// The part that an op belongs to, from 1; 0: to none.
inline int64_t PartOf(const Op& op) {
  const std::string_view path = op.path;
  if (!path.starts_with(kPart)) return 0;
  int64_t part = 0;
  const char* const end = path.data() + path.size();
  const auto read = std::from_chars(path.data() + kPart.size(), end, part);
  const bool whole = read.ec == std::errc() && (read.ptr == end || *read.ptr == '.');
  return whole && part > 0 ? part : 0;
}

// An op's path below the scope of its part.
inline std::string_view BelowPart(const Op& op) {
  const std::string_view path = op.path;
  if (PartOf(op) == 0) return path;
  const size_t dot = path.find('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
}

// Whether an op adds a part's gradient of a weight to that of the parts before it.
inline bool SumsGradients(const Op& op) {
  return op.kind == "add" && PartOf(op) > 0 && op.path.ends_with(kSumOfGradients);
}

}  // namespace meshtrain::program
