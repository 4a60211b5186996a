#include "runtime/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace meshtrain::internal {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, condition);
  std::abort();
}

}  // namespace meshtrain::internal
