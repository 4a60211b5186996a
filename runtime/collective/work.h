// What every communicator does alike: checking a call, copying and reducing within a process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/collective/communicator.h"
#include "runtime/collective/reduce.h"

namespace meshtrain::collective {

// Fills by_rank (as long as the mesh) from `local`, which must name each of `ranks` once.
// Errors: kInvalidArgument (a rank missing, unknown or twice; null buffers; send == receive without
// `in_place`; count).
Status TakeParticipants(const GroupCall& call, int64_t count, std::span<const Participant> local,
                        std::span<const int64_t> ranks, bool in_place,
                        std::vector<Participant>& by_rank);
// Errors: kInvalidArgument.
Status CheckSources(const GroupCall& call, std::span<const int64_t> source_of, int64_t group_size);
Status CheckRoot(const GroupCall& call, int64_t root, int64_t group_size);
// The kernel. Errors: kInvalidArgument (a sum of bools).
Result<ReduceFn> ReduceOf(const GroupCall& call, mesh::Reduction reduction);

// Spreads body(begin, end) over [0, n) in pieces of at least `grain`, on the caller where nothing
// is gained.
template <typename Body>
void Spread(const ParallelFor* parallel, int64_t n, int64_t grain, const Body& body) {
  if (n <= 0) return;
  if (parallel != nullptr && n >= 2 * grain) {
    (*parallel)(n, grain, std::cref(body));
  } else {
    body(0, n);
  }
}

// `to` may be `from`.
void Copy(const ParallelFor* parallel, std::byte* to, const std::byte* from, int64_t bytes);

// The same for what would not stay in the caches anyway: `to` is written without being read into
// them first, which spares a third of the traffic. They do not overlap.
void CopyPastCaches(const ParallelFor* parallel, std::byte* to, const std::byte* from,
                    int64_t bytes);

// to = sources[0] (op) sources[1] (op) ..., block by block, so that the partial result stays in the
// cache. `to` may be one of the sources.
void Fold(const ParallelFor* parallel, ReduceFn reduce, std::byte* to,
          std::span<const std::byte* const> sources, int64_t count, int64_t width);

}  // namespace meshtrain::collective
