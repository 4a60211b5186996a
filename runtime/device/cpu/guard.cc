#include "runtime/device/cpu/guard.h"

#include <limits>

#include "runtime/device/cpu/kernels.h"

namespace meshtrain::device::cpu {

Guard::Guard(const plan::Plan& plan, std::span<const int64_t> ranks) {
  const sharding::Partitioned& p = plan.partitioned;
  for (const int i : plan.guarded) {
    const program::Port& port = p.local.outputs[i];
    Guarded guarded{port.value, port.name, p.local.type(port.value), {}};
    for (const int64_t rank : ranks) {
      guarded.valid.push_back(p.output_layouts[i].SliceOf(rank, p.output_types[i].dims).sizes);
    }
    guarded_.push_back(std::move(guarded));
  }
  if (plan.zero_output >= 0) zero_ = p.local.outputs[plan.zero_output].value;
}

Status Guard::Check(int device, std::span<std::byte* const> at) const {
  for (const Guarded& g : guarded_) {
    if (NotFinite(g, g.valid[device], at[g.value]) == 0) continue;
    return Aborted("output `" + g.name + "` is not finite").From(Origin::kNumbers);
  }
  if (zero_ == program::kNoValue) return OkStatus();
  const float count = *reinterpret_cast<const float*>(at[zero_]);
  if (count == 0) return OkStatus();
  return Aborted(std::to_string(static_cast<int64_t>(count)) +
                 " elements of the loss and the gradients are not finite")
      .From(Origin::kNumbers);
}

int64_t Guard::NotFinite(const Guarded& guarded, const mesh::Dims& valid, const std::byte* shard) {
  const mesh::Dims& stored = guarded.shard.dims;
  // Elements lie in runs: over all dimensions from `inner` on, and what dimension inner - 1 holds.
  size_t inner = stored.size();
  while (inner > 0 && valid[inner - 1] == stored[inner - 1]) --inner;
  const size_t outer = inner == 0 ? 0 : inner - 1;  // dimensions that count runs
  const mesh::Dims strides = mesh::Strides(stored);
  const int64_t run = inner == 0 ? guarded.shard.num_elements() : valid[outer] * strides[outer];
  int64_t runs = 1;
  for (size_t d = 0; d < outer; ++d) runs *= valid[d];
  const int64_t width = mesh::DTypeBytes(guarded.shard.dtype);
  int64_t count = 0;
  for (int64_t r = 0; r < runs; ++r) {
    int64_t offset = 0, rest = r;
    for (size_t d = outer; d-- > 0;) {
      offset += rest % valid[d] * strides[d];
      rest /= valid[d];
    }
    count +=
        ActiveKernels().count_beyond(static_cast<Type>(guarded.shard.dtype), shard + offset * width,
                                     run, std::numeric_limits<double>::max());
  }
  return count;
}

}  // namespace meshtrain::device::cpu
