#include "runtime/collective/checksum.h"

// The library's own choice among SSE2, AVX2 and AVX-512, at run time; it exists for x86 only.
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace meshtrain::collective {

uint64_t Checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace meshtrain::collective
