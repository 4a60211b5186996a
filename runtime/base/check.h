// MT_CHECK(condition): a broken invariant ends the process with file, line and text.
// For bugs of ours only; what a user can cause is a Status.
#pragma once

namespace meshtrain::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}

#define MT_CHECK(condition)                                               \
  do {                                                                    \
    if (!(condition)) [[unlikely]] {                                      \
      ::meshtrain::internal::CheckFailed(__FILE__, __LINE__, #condition); \
    }                                                                     \
  } while (false)
