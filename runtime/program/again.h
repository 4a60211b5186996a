// Values that a gradient needs and that are computed again for it, instead of kept from when they
// were first computed (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
// arXiv:1604.06174): the ops that do so carry the path of the op that they repeat, and a mark.
#pragma once

#include <string_view>

#include "runtime/program/program.h"

namespace meshtrain::program {

// Behind the path; names of scopes hold no spaces.
inline constexpr std::string_view kAgain = " again";

inline bool IsAgain(const Op& op) { return op.path.ends_with(kAgain); }

// The path that an op's random numbers are keyed by: a repeated op draws those of the first.
inline std::string_view PathDrawn(const Op& op) {
  std::string_view path = op.path;
  if (IsAgain(op)) path.remove_suffix(kAgain.size());
  return path;
}

}  // namespace meshtrain::program
