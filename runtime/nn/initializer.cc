#include "runtime/nn/initializer.h"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace meshtrain::nn {
namespace {

// In float, as `tf.sqrt(6.) / tf.sqrt(tf.cast(fan_in + fan_out, tf.float32))` does: the last bit of
// the limit reaches every weight.
double Limit(float numerator, int64_t fans) {
  return std::sqrt(numerator) / std::sqrt(static_cast<float>(std::max<int64_t>(1, fans)));
}

double TruncatedDeviation(double variance) { return std::sqrt(variance) / 0.87962566103423978; }

std::atomic<int64_t>& SeedOfProcess() {
  static std::atomic<int64_t> seed = 0;
  return seed;
}

}  // namespace

void SetRandomSeed(int64_t seed) { SeedOfProcess().store(seed); }
int64_t RandomSeed() { return SeedOfProcess().load(); }

Seed SeedFor(int64_t program_seed, std::string_view path) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : path) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return {program_seed, static_cast<int64_t>(hash)};
}

std::pair<int64_t, int64_t> Fans(const program::Dims& dims) {
  if (dims.empty()) return {1, 1};
  if (dims.size() == 1) return {dims[0], dims[0]};
  int64_t window = 1;
  for (size_t d = 0; d + 2 < dims.size(); ++d) window *= dims[d];
  return {window * dims[dims.size() - 2], window * dims.back()};
}

Value Initializer::Record(const TensorType& type, Seed fallback) const {
  const Seed s = seed.value_or(fallback);
  const auto [in, out] = Fans(type.dims);
  const double fan_in = static_cast<double>(std::max<int64_t>(1, in));
  const double fans = static_cast<double>(std::max<int64_t>(1, in + out));
  switch (kind) {
    case Kind::kConstant:
      return program::Fill(type.dims, a, type.dtype);
    case Kind::kUniform:
      return program::StatelessUniform(type.dims, s, a, b, type.dtype);
    case Kind::kNormal:
      return program::StatelessNormal(type.dims, s, a, b, type.dtype);
    case Kind::kTruncatedNormal:
      return program::StatelessTruncatedNormal(type.dims, s, a, b, type.dtype);
    case Kind::kGlorotUniform: {
      const double limit = Limit(6, in + out);
      return program::StatelessUniform(type.dims, s, -limit, limit, type.dtype);
    }
    case Kind::kHeUniform: {
      const double limit = Limit(6, in);
      return program::StatelessUniform(type.dims, s, -limit, limit, type.dtype);
    }
    case Kind::kGlorotNormal:
      return program::StatelessTruncatedNormal(type.dims, s, 0, TruncatedDeviation(2 / fans),
                                               type.dtype);
    case Kind::kHeNormal:
      return program::StatelessTruncatedNormal(type.dims, s, 0, TruncatedDeviation(2 / fan_in),
                                               type.dtype);
  }
  return {};
}

}  // namespace meshtrain::nn
