// How a weight begins, as a description: nothing is computed until Record appends the ops to a
// program.
//
// Values depend on the seed alone, never on the layout or the number of devices. Without a seed of
// its own an initializer draws from the program's seed and the parameter's path, so adding a layer
// does not change the others. Formulas: Glorot & Bengio 2010 (limit sqrt(6)/sqrt(fan_in +
// fan_out)), He et al. 2015; the truncated variants use Keras' correction of the deviation
// (0.87962566103423978, that of a unit normal cut at 2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/program/ops.h"

namespace meshtrain::nn {

using program::Seed;
using program::TensorType;
using program::Value;

struct Initializer {
  enum class Kind : uint8_t {
    kConstant,         // a
    kUniform,          // [a, b)
    kNormal,           // mean a, deviation b
    kTruncatedNormal,  // the same, redrawn outside two deviations
    kGlorotUniform,
    kGlorotNormal,  // truncated
    kHeUniform,
    kHeNormal,  // truncated
  };
  Kind kind = Kind::kConstant;
  double a = 0;
  double b = 0;
  std::optional<Seed> seed;

  static Initializer Zeros() { return {}; }
  static Initializer Ones() { return Constant(1); }
  static Initializer Constant(double value) { return {Kind::kConstant, value, 0, {}}; }
  static Initializer Uniform(double low, double high, std::optional<Seed> seed = {}) {
    return {Kind::kUniform, low, high, seed};
  }
  static Initializer Normal(double mean, double deviation, std::optional<Seed> seed = {}) {
    return {Kind::kNormal, mean, deviation, seed};
  }
  static Initializer TruncatedNormal(double mean, double deviation, std::optional<Seed> seed = {}) {
    return {Kind::kTruncatedNormal, mean, deviation, seed};
  }
  static Initializer GlorotUniform(std::optional<Seed> seed = {}) {
    return {Kind::kGlorotUniform, 0, 0, seed};
  }
  static Initializer XavierUniform(std::optional<Seed> seed = {}) { return GlorotUniform(seed); }
  static Initializer GlorotNormal(std::optional<Seed> seed = {}) {
    return {Kind::kGlorotNormal, 0, 0, seed};
  }
  static Initializer HeUniform(std::optional<Seed> seed = {}) {
    return {Kind::kHeUniform, 0, 0, seed};
  }
  static Initializer HeNormal(std::optional<Seed> seed = {}) {
    return {Kind::kHeNormal, 0, 0, seed};
  }

  // Records the initial value of a tensor of `type` in the current builder; `fallback` is the seed
  // where there is none.
  Value Record(const TensorType& type, Seed fallback) const;

  friend bool operator==(const Initializer&, const Initializer&) = default;
};

// The seed of this process: of initial values and dropout wherever no options and no manifest name
// one (docs/decisions/0021-a-seed-of-the-process.md). 0 until it is set. From any thread; a thread
// that makes options or first values meanwhile takes the old seed or the new one, so set it before
// others begin, and to the same number in every process of a mesh.
void SetRandomSeed(int64_t seed);
int64_t RandomSeed();

// The seed of a parameter that has none: the program's, and a hash (FNV-1a, 64 bits) of its path.
Seed SeedFor(int64_t program_seed, std::string_view path);

// Inputs and outputs of one unit. [in, out]; convolutions [...window, in, out] count the window; a
// vector both ways.
std::pair<int64_t, int64_t> Fans(const program::Dims& dims);

}  // namespace meshtrain::nn
