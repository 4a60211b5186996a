// Loops written by hand for one purpose each: what the general machinery is measured against.
#pragma once

#include <cstdint>

namespace meshtrain::bench {

struct AdamRates {
  float lr = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-7f;
  float correct1 = 1, correct2 = 1;  // 1 - beta^t
};
// One Adam update of elements [begin, end): the paper's, epsilon outside the root.
void HandAdam(const AdamRates& r, const float* g, float* m, float* v, float* p, int64_t begin,
              int64_t end);

}  // namespace meshtrain::bench
