#include "runtime/train/packing.h"

#include <algorithm>

#include "runtime/train/programs.h"

namespace meshtrain::train {

std::optional<int64_t> BytesPerPack(const Packing& packing, int64_t gradient_bytes) {
  if (packing.bytes_per_pack) return packing.bytes_per_pack;
  if (!packing.num_packs || *packing.num_packs == 0) return packing.num_packs;
  return std::max<int64_t>(1, (gradient_bytes + *packing.num_packs - 1) / *packing.num_packs);
}

std::optional<int64_t> BytesPerPack(const Packing& packing, const Programs& programs) {
  int64_t gradient_bytes = 0;
  for (const nn::Parameter& p : programs.parameters) gradient_bytes += p.type().num_bytes();
  return BytesPerPack(packing, gradient_bytes);
}

}  // namespace meshtrain::train
