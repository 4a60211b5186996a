// The TPU slices that a step can be compiled for.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/mesh/tpu_slice.h"

namespace meshtrain::device {

// "tpu:v5e-8". Errors, of kManifest: kInvalidArgument with the names that there are and the nearest
// one.
Result<mesh::TpuSlice> ParseTpuTarget(std::string_view text);

// As libtpu calls it: the kind of chip and the shape, "v5e:2x4".
std::string LibtpuTopology(const mesh::TpuSlice& slice);

}  // namespace meshtrain::device
