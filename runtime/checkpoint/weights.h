// `initial_weights`: tensors by parameter path (`hidden_1.kernel`) from a safetensors file or a
// checkpoint's folder.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::checkpoint {

// One tensor for each of `parameters`, in their order; other tensors of the file are left alone.
// f32 and f64 are converted into each other where asked. `path` may be a safetensors file, a
// checkpoint (its folder), or a folder of checkpoints (the newest). Errors: kInvalidArgument naming
// every parameter that is missing (with the nearest name) or of another shape or type, and then
// `whose` parameters they are, where that is said; the reader's.
Result<std::vector<mesh::Tensor>> LoadWeights(const std::string& path,
                                              std::span<const mesh::NamedType> parameters,
                                              std::string_view whose = "");

}  // namespace meshtrain::checkpoint
