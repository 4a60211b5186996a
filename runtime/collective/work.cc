#include "runtime/collective/work.h"

#include <algorithm>
#include <cstring>
#include <string>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace meshtrain::collective {
namespace {

// Small enough that the partial result stays in the first-level cache.
constexpr int64_t kBlockBytes = 8 << 10;
constexpr int64_t kCopyGrain = 128 << 10;
// Longer ones glibc copies with `rep movsb`, which on Zen 3 falls to a third of its speed where the
// target lies a little further into its page than the source (glibc bug 30994): our slots against
// the caller's buffers.
constexpr int64_t kCopyPiece = 2048;

Status Bad(const GroupCall& call, const std::string& text) {
  return InvalidArgument(call.what + ": " + text);
}

}  // namespace

Status TakeParticipants(const GroupCall& call, int64_t count, std::span<const Participant> local,
                        std::span<const int64_t> ranks, bool in_place,
                        std::vector<Participant>& by_rank) {
  if (local.size() != ranks.size()) {
    return Bad(call,
               "each of the " + std::to_string(ranks.size()) +
                   " devices of this process must take part, got: " + std::to_string(local.size()));
  }
  if (count < 0) return Bad(call, "count must be at least 0, got: " + std::to_string(count));
  for (const int64_t rank : ranks) by_rank[rank].rank = -1;
  for (const Participant& p : local) {
    if (!std::binary_search(ranks.begin(), ranks.end(), p.rank) || by_rank[p.rank].rank >= 0) {
      return Bad(call,
                 "each rank of this process must take part once, got: " + std::to_string(p.rank));
    }
    if (count > 0 && (p.send == nullptr || p.receive == nullptr)) {
      return Bad(call, "rank " + std::to_string(p.rank) + " has no buffer");
    }
    if (!in_place && count > 0 && p.send == p.receive) {
      return Bad(call,
                 "rank " + std::to_string(p.rank) + " receives into the buffer that it sends");
    }
    by_rank[p.rank] = p;
  }
  return OkStatus();
}

Status CheckSources(const GroupCall& call, std::span<const int64_t> source_of, int64_t group_size) {
  if (static_cast<int64_t>(source_of.size()) != group_size) {
    return Bad(call, "expected a source for each of the " + std::to_string(group_size) +
                         " members of a group, got: " + std::to_string(source_of.size()));
  }
  for (const int64_t source : source_of) {
    if (source < -1 || source >= group_size) {
      return Bad(call, "a source must be in -1.." + std::to_string(group_size - 1) +
                           ", got: " + std::to_string(source));
    }
  }
  return OkStatus();
}

Status CheckRoot(const GroupCall& call, int64_t root, int64_t group_size) {
  if (root >= 0 && root < group_size) return OkStatus();
  return Bad(call, "root must be in 0.." + std::to_string(group_size - 1) +
                       ", got: " + std::to_string(root));
}

Result<ReduceFn> ReduceOf(const GroupCall& call, mesh::Reduction reduction) {
  const ReduceFn reduce = FindReduce(call.dtype, reduction);
  if (reduce != nullptr) return reduce;
  return Bad(call, "no " + std::string(mesh::ReductionName(reduction)) + " of " +
                       std::string(mesh::DTypeName(call.dtype)));
}

void Copy(const ParallelFor* parallel, std::byte* to, const std::byte* from, int64_t bytes) {
  if (to == from) return;
  Spread(parallel, bytes, kCopyGrain, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kCopyPiece) {
      std::memcpy(to + at, from + at, std::min(kCopyPiece, end - at));
    }
  });
}

void CopyPastCaches(const ParallelFor* parallel, std::byte* to, const std::byte* from,
                    int64_t bytes) {
#if defined(__x86_64__)
  constexpr int64_t kLine = 64;
  Spread(parallel, bytes, kCopyGrain, [&](int64_t begin, int64_t end) {
    const int64_t before = -reinterpret_cast<intptr_t>(to + begin) & (kLine - 1);
    int64_t at = std::min(begin + before, end);
    std::memcpy(to + begin, from + begin, at - begin);
    for (; at + kLine <= end; at += kLine) {
      const auto* source = reinterpret_cast<const __m128i*>(from + at);
      auto* target = reinterpret_cast<__m128i*>(to + at);
      const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
    std::memcpy(to + at, from + at, end - at);
    _mm_sfence();  // these stores are ordered by nothing else
  });
#else
  Copy(parallel, to, from, bytes);
#endif
}

void Fold(const ParallelFor* parallel, ReduceFn reduce, std::byte* to,
          std::span<const std::byte* const> sources, int64_t count, int64_t width) {
  if (sources.size() == 1) return Copy(parallel, to, sources[0], count * width);
  const int64_t block = kBlockBytes / width;
  const bool late = std::find(sources.begin() + 2, sources.end(), to) != sources.end();
  Spread(parallel, (count + block - 1) / block, 16, [&](int64_t first, int64_t last) {
    alignas(64) std::byte partial[kBlockBytes];
    for (int64_t b = first; b < last; ++b) {
      const int64_t n = std::min(block, count - b * block), at = b * block * width;
      std::byte* sum = late ? partial : to + at;
      reduce(sum, sources[0] + at, sources[1] + at, n);
      for (size_t s = 2; s < sources.size(); ++s) reduce(sum, sum, sources[s] + at, n);
      if (late) std::memcpy(to + at, partial, n * width);
    }
  });
}

}  // namespace meshtrain::collective
