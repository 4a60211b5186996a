// Packing, in bytes of a bucket.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/train/optimizer.h"

namespace meshtrain::train {

struct Programs;

// Bytes of a pack, as plan::Options::bucket_bytes, where all gradients together have
// `gradient_bytes`; nothing: as the plan has it. {.num_packs = 3} of 100 gives 34.
std::optional<int64_t> BytesPerPack(const Packing& packing, int64_t gradient_bytes);
// As above, of these programs' gradients.
std::optional<int64_t> BytesPerPack(const Packing& packing, const Programs& programs);

}  // namespace meshtrain::train
