#include "runtime/base/json_depth.h"

#include <algorithm>
#include <string>

namespace meshtrain {

int JsonDepth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

Status CheckJsonDepth(std::string_view text) {
  const int depth = JsonDepth(text);
  if (depth <= kDeepestJson) return OkStatus();
  return InvalidArgument("expected JSON of at most " + std::to_string(kDeepestJson) +
                         " levels, got: " + std::to_string(depth));
}

}  // namespace meshtrain
