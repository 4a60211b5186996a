#include "tests/bench/hand_loops.h"

#include <cmath>

namespace meshtrain::bench {

void HandAdam(const AdamRates& r, const float* __restrict g, float* __restrict m,
              float* __restrict v, float* __restrict p, int64_t begin, int64_t end) {
  const float a = 1 - r.beta1, b = 1 - r.beta2;
  for (int64_t i = begin; i < end; ++i) {
    const float m1 = r.beta1 * m[i] + a * g[i];
    const float v1 = r.beta2 * v[i] + b * g[i] * g[i];
    m[i] = m1;
    v[i] = v1;
    p[i] -= r.lr * (m1 / r.correct1) / (std::sqrt(v1 / r.correct2) + r.epsilon);
  }
}

}  // namespace meshtrain::bench
