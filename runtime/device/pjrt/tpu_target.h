// The TPU slices that a step can be compiled for, by the names under which they are rented.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace meshtrain::device {

// A slice of chips that are wired to each other.
struct TpuTarget {
  std::string_view name;      // "v5e-8"
  std::string_view topology;  // as libtpu calls it: the kind of chip and the shape, "v5e:2x4"
  int devices = 0;            // v4's number counts its two cores a chip, each a device of its own;
                              // v5p's counts cores too, but a chip's two are one device
  std::string_view accelerator;  // the cloud's name, "v5litepod-8"
};
// By kind of chip, then by size.
std::span<const TpuTarget> TpuTargets();

// "tpu:v5e-8". Errors, of kManifest: kInvalidArgument with the names that there are and the nearest
// one.
Result<TpuTarget> ParseTpuTarget(std::string_view text);

}  // namespace meshtrain::device
