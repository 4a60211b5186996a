// Where a run of a property test begins.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace meshtrain::testing_seed {

// MT_TEST_SEED, or 1.
inline uint64_t FromEnvironment() {
  const char* text = std::getenv("MT_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

}  // namespace meshtrain::testing_seed
