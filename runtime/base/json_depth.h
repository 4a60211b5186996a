// How deep a JSON text goes, before anybody makes a tree of it: what walks a tree to print it goes
// one call deeper for each level, and a text of a megabyte may have a million of them. Pure.
#pragma once

#include <string_view>

#include "runtime/base/status.h"

namespace meshtrain {

// No text that we read or write goes as deep.
inline constexpr int kDeepestJson = 64;

// The most lists and maps that lie in each other: 0 for "7", 2 for {"a": [1]}. Of a text that is no
// JSON, at least what its sound beginning has.
int JsonDepth(std::string_view text);

// Errors: kInvalidArgument for one that goes deeper than kDeepestJson.
Status CheckJsonDepth(std::string_view text);

}  // namespace meshtrain
