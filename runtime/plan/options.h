// How a plan is made: plan.h says what one is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshtrain::plan {

struct Options {
  bool fuse = true;
  // Folds (Folded in plan.h) belong to chains where they make one element of at least so many: with
  // fewer the loop over rows costs more than another pass. 0: never.
  int64_t fewest_folded = 16;
  // Chains that come much later compute what is cheap to compute again, in place of reading it,
  // from so many bytes on: less stays near the processor. 0: of any size.
  int64_t least_repeated = int64_t{64} << 10;
  // All-reduces of one group are joined into a bucket until it holds this much, and one of a scalar
  // (a count, a loss) whatever it holds; 0: never.
  int64_t bucket_bytes = int64_t{4} << 20;
  // Collectives begin as soon as their operands are there, and may go on beside the steps after
  // them: each ends before the first step that reads what it writes (Step::waits), and until then
  // nothing overwrites what it reads. Buckets are then at most overlap_bucket_bytes, so that the
  // first leaves while the backward pass goes on.
  bool overlap = false;
  int64_t overlap_bucket_bytes = int64_t{1} << 20;
  // Collectives come in the order in which they were recorded, and which of them share a bucket
  // follows from them alone: programs that differ in dimensions only (replicas with batches of
  // their own sizes) make the same calls.
  bool recorded_order = false;
  // Floating-point outputs, whole in each process, that must be finite before a state changes: see
  // Plan::guard_step. sharding::Partitioned::guard_output, if there is one, must be 0 by then too.
  std::vector<std::string> finite_outputs;
};

}  // namespace meshtrain::plan
