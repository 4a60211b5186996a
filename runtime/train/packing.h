// How gradients go together on their way between devices: what a manifest's `packing` and a
// strategy's mean.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/train/programs.h"

namespace meshtrain::train {

// In so many packs of about the same size, 0: each gradient alone; or in packs of so many bytes.
struct Packing {
  std::optional<int64_t> num_packs;
  std::optional<int64_t> bytes_per_pack;
  bool given() const { return num_packs || bytes_per_pack; }
};

// Bytes of a pack, as plan::Options::bucket_bytes, where all gradients together have
// `gradient_bytes`; nothing: as the plan has it. {.num_packs = 3} of 100 gives 34.
std::optional<int64_t> BytesPerPack(const Packing& packing, int64_t gradient_bytes);
// As above, of these programs' gradients.
std::optional<int64_t> BytesPerPack(const Packing& packing, const Programs& programs);

}  // namespace meshtrain::train
