#include "runtime/collective/memory/shm.h"

#include <algorithm>
#include <cstring>

#include "runtime/collective/work.h"

namespace meshtrain::collective {
namespace {

// Up to here an all-reduce is one round in which each reads all. Measured with collective_bench.
constexpr int64_t kReadAllBytes = 32 << 10;
// Up to here nothing is asked about where payloads lie: copying costs less than the question.
constexpr int64_t kAskBytes = 128 << 10;
// From here on the payloads of all members together fall out of the last cache, so that what is
// copied goes past it. Measured with collective_bench on Zen 4 (32 MiB of L3 for its cores): 16 MB
// among 4 takes 5.4 instead of 6.7 ms, 4 MB among 4 would take 1.15 instead of 0.95 ms.
constexpr int64_t kPastCachesBytes = 32 << 20;

// Tickets are made of the collective's number (34 bits), the process group's level (8), the stage
// (4) and the phase (18), so that each process' tickets rise from call to call and mean the same to
// all members of a process group.
constexpr uint64_t kPhases = uint64_t{1} << 18;
constexpr uint64_t kEnd = kPhases - 1;
constexpr int kMaxLevel = 255, kMaxStage = 15;
constexpr int kNumberShift = 30;

}  // namespace

// Rounds: what a member gives in round r lies in its slot (collective + level + stage + r) modulo
// kSlots, posted by the ticket of phase Given(r). A slot is used again when all members have passed
// the phase in which they read it.
class SharedMemory::Part {
 public:
  Part(SharedMemory& memory, const HostCall& host, int64_t bytes)
      : memory_(memory),
        host_(host),
        call_(*host.call),
        small_(bytes <= kReadAllBytes),
        base_((call_.header.collective << kNumberShift) |
              (static_cast<uint64_t>(call_.peers->level) * (kMaxStage + 1) + host.stage) * kPhases),
        first_(static_cast<int>((call_.header.collective + call_.peers->level + host.stage) %
                                kSlots)) {}

  Status Check(int64_t phases) const {
    if (call_.peers->level > kMaxLevel || phases >= static_cast<int64_t>(kEnd)) {
      return InvalidArgument(
          "too much for one collective through shared memory: " + std::to_string(phases) +
          " rounds, level " + std::to_string(call_.peers->level));
    }
    return OkStatus();
  }

  int size() const { return host_.size(); }
  int me() const { return host_.me; }
  int Slot(int64_t round) const { return static_cast<int>((first_ + round) % kSlots); }

  // Our slot for this round, once nobody reads what it held. `freed`: the phase by which all
  // members of this call have read round r - kSlots.
  Status Acquire(int64_t round, uint64_t freed, int64_t input = -1, int64_t output = -1) {
    Use& use = memory_.uses_[Slot(round)];
    const bool ours = round >= kSlots;
    if (!ours && use.done == base_ + kEnd) {
      return OkStatus();  // by Whole: its answer stays readable
    }
    const uint64_t done = ours ? base_ + freed : use.done;
    for (const int process : ours ? host_.members : std::span<const int>(use.readers)) {
      if (process != host_.members[host_.me]) {
        MT_RETURN_IF_ERROR(memory_.Await(call_, process, done, small_));
      }
    }
    SlotHead& head = memory_.own_.slot(Slot(round));
    head.frame = call_.header;
    head.input = input;
    head.output = output;
    use.readers.assign(host_.members.begin(), host_.members.end());
    use.done = base_ + kEnd;
    return OkStatus();
  }
  std::byte* Payload(int64_t round) { return memory_.own_.payload(Slot(round)); }
  std::byte* ReducedAt(int64_t round) { return memory_.own_.result(Slot(round)); }

  void Post(uint64_t phase) { memory_.Post(base_ + phase, host_.members, host_.me); }
  // After the last bytes are taken. Errors: Diverges, where a member is in another incarnation: we
  // slept so long that the others went on without us, and what we took may be of theirs.
  Status End() {
    std::atomic_thread_fence(std::memory_order_acquire);  // the reads before come before these
    for (int m = 0; m < size(); ++m) {
      if (m == me()) continue;
      const FrameHeader want = Of(m);
      FrameHeader got = want;
      got.incarnation = Peer(m).head().incarnation.load(std::memory_order_relaxed);
      if (const FrameDifference difference = Compare(got, want);
          difference != FrameDifference::kNone) {
        return call_.diagnosis->Diverges(difference, got, want);
      }
    }
    Post(kEnd);
    return OkStatus();
  }

  Status Await(int member, uint64_t phase) {
    return memory_.Await(call_, host_.members[member], base_ + phase, small_);
  }
  Status AwaitAll(uint64_t phase) {
    for (int i = 1; i < size(); ++i) MT_RETURN_IF_ERROR(Await((me() + i) % size(), phase));
    return OkStatus();
  }

  // The slot that a member posted by `phase`, if it is of this call.
  Result<const SlotHead*> Posted(int member, int64_t round, uint64_t phase) {
    MT_RETURN_IF_ERROR(Await(member, phase));
    const PeerSegment& peer = Peer(member);
    const SlotHead& head = peer.slot(Slot(round));
    const FrameHeader want = Of(member);
    const FrameDifference difference = Compare(head.frame, want);
    if (difference == FrameDifference::kNone) return &head;
    FrameHeader got = head.frame;
    const uint64_t number = peer.head().ticket.load(std::memory_order_acquire) >> kNumberShift;
    if (got.collective != want.collective) {
      got.collective = number;  // an old use of the slot: the peer is elsewhere
    }
    return call_.diagnosis->Diverges(
        got.collective != want.collective ? FrameDifference::kCollective : difference, got, want);
  }
  const PeerSegment& Peer(int member) { return memory_.peers_[host_.members[member]]; }
  FrameHeader Of(int member) const {  // what a frame of this call from this member says
    FrameHeader header = call_.header;
    header.source = static_cast<uint32_t>(host_.members[member]);
    return header;
  }

  // Where each member's payload lies as a whole; empty unless all have theirs in their segments
  // (with `results`: and what they receive at the same place). Takes phase 1 and the slot of round
  // 0.
  Result<std::vector<const std::byte*>> Whole(const std::byte* in, const std::byte* out,
                                              int64_t bytes, bool results) {
    Segment& own = memory_.own_;
    const int64_t input = own.OffsetOf(in, bytes), output = results ? own.OffsetOf(out, bytes) : -1;
    MT_RETURN_IF_ERROR(Acquire(0, 0, input, output));
    Post(1);
    std::vector<const std::byte*> at(size(), in);
    bool all = input >= 0 && (!results || output == input);
    for (int i = 1; i < size(); ++i) {
      const int member = (me() + i) % size();
      MT_ASSIGN_OR_RETURN(const SlotHead* head, Posted(member, 0, 1));
      all = all && head->input >= 0 && (!results || head->output == head->input);
      if (all) at[member] = Peer(member).At(head->input);
    }
    if (!all) at.clear();
    return at;
  }

  // Rounds in which members give and take: give(r, slot) fills ours, take(r) reads the others'
  // through Taken. In round r the members' slots of r are posted by Given(r); what was given in r
  // has been read by Given(r + 2).
  static uint64_t Given(int64_t round) { return 2 + static_cast<uint64_t>(round); }
  template <typename Give, typename Take>
  Status Rounds(int64_t rounds, const Give& give, const Take& take) {
    MT_RETURN_IF_ERROR(Check(rounds + 4));
    for (int64_t r = 0; r <= rounds; ++r) {
      if (r < rounds) {
        MT_RETURN_IF_ERROR(Acquire(r, Given(r - kSlots + 2)));
        give(r, Payload(r));
        Post(Given(r));
      }
      if (r > 0) MT_RETURN_IF_ERROR(take(r - 1));
    }
    return End();
  }
  Result<const std::byte*> Taken(int member, int64_t round) {
    MT_RETURN_IF_ERROR(Posted(member, round, Given(round)).status());
    return Peer(member).payload(Slot(round));
  }

 private:
  SharedMemory& memory_;
  const HostCall& host_;
  const Call& call_;
  const bool small_;
  const uint64_t base_;
  const int first_;
};

Status SharedMemory::AllReduce(const HostCall& host, const std::byte* in, std::byte* out,
                               int64_t count, const Reducing& how) {
  const Call& call = *host.call;
  const int64_t width = how.width;
  const int64_t bytes = count * width;
  Part part(*this, host, bytes);
  const int n = part.size(), me = part.me();
  std::vector<const std::byte*> sources(n);
  if (bytes <= kReadAllBytes) {
    return part.Rounds(
        1, [&](int64_t, std::byte* slot) { std::memcpy(slot, in, bytes); },
        [&](int64_t) {
          for (int i = 1; i < n; ++i) {
            MT_ASSIGN_OR_RETURN(sources[(me + i) % n], part.Taken((me + i) % n, 0));
          }
          sources[me] = part.Payload(0);  // `in` may be `out`
          Fold(call.parallel, how.ordered, out, sources, count, width);
          return OkStatus();
        });
  }
  if (bytes > kAskBytes) {
    MT_ASSIGN_OR_RETURN(const std::vector<const std::byte*> at, part.Whole(in, out, bytes, true));
    if (!at.empty()) {
      const Range mine = PartOf(count, n, me);
      for (int m = 0; m < n; ++m) sources[m] = at[m] + mine.begin * width;
      Fold(call.parallel, how.reduce, out + mine.begin * width, sources, mine.count, width);
      part.Post(2);
      const auto copy = n * bytes >= kPastCachesBytes ? CopyPastCaches : Copy;
      for (int i = 1; i < n; ++i) {
        const int member = (me + i) % n;
        const Range theirs = PartOf(count, n, member);
        MT_RETURN_IF_ERROR(part.Await(member, 2));
        copy(call.parallel, out + theirs.begin * width, at[member] + theirs.begin * width,
             theirs.count * width);
      }
      MT_RETURN_IF_ERROR(part.End());
      return part.AwaitAll(kEnd);  // the caller may change what the others still copy
    }
  }
  // Pipelined: while round r is given, r - 1 is reduced and r - 2 copied out, so that few waits are
  // for somebody who has just been woken. Phases in the order in which they are posted: 2, 4, 5, 6,
  // 7, ...
  const auto given = [](int64_t r) { return static_cast<uint64_t>(2 * r + 2); };
  const auto reduced = [](int64_t r) { return static_cast<uint64_t>(2 * r + 5); };
  const int64_t chunk = kSlotBytes / width;
  const int64_t rounds = (count + chunk - 1) / chunk;
  MT_RETURN_IF_ERROR(part.Check(2 * rounds + 8));
  const auto length = [&](int64_t r) { return std::min(chunk, count - r * chunk); };
  for (int64_t r = 0; r <= rounds + 1; ++r) {
    if (r < rounds) {
      // What was given in r - kSlots is read, and its result copied out, by the time that r -
      // kSlots + 3 is given.
      MT_RETURN_IF_ERROR(part.Acquire(r, given(r - kSlots + 3)));
      const Range mine = PartOf(length(r), n, me);
      const std::byte* from = in + r * chunk * width;
      std::byte* slot = part.Payload(r);
      Copy(call.parallel, slot, from, mine.begin * width);
      const int64_t after = (mine.begin + mine.count) * width;
      Copy(call.parallel, slot + after, from + after, length(r) * width - after);
      part.Post(given(r));
    }
    if (const int64_t q = r - 1; q >= 0 && q < rounds) {
      const Range mine = PartOf(length(q), n, me);
      for (int i = 1; i < n; ++i) {
        const int member = (me + i) % n;
        MT_RETURN_IF_ERROR(part.Posted(member, q, given(q)).status());
        sources[member] = part.Peer(member).payload(part.Slot(q)) + mine.begin * width;
      }
      const int64_t at = (q * chunk + mine.begin) * width;
      sources[me] = in + at;
      Fold(call.parallel, how.reduce, part.ReducedAt(q), sources, mine.count, width);
      Copy(call.parallel, out + at, part.ReducedAt(q), mine.count * width);
      part.Post(reduced(q));
    }
    if (const int64_t q = r - 2; q >= 0) {
      for (int i = 1; i < n; ++i) {
        const int member = (me + i) % n;
        const Range theirs = PartOf(length(q), n, member);
        MT_RETURN_IF_ERROR(part.Await(member, reduced(q)));
        Copy(call.parallel, out + (q * chunk + theirs.begin) * width,
             part.Peer(member).result(part.Slot(q)), theirs.count * width);
      }
    }
  }
  return part.End();
}

Status SharedMemory::ReduceScatter(const HostCall& host, const std::byte* in,
                                   std::span<const int64_t> bounds, std::byte* out, int64_t width,
                                   ReduceFn reduce) {
  const Call& call = *host.call;
  const int64_t bytes = bounds.back() * width;
  Part part(*this, host, bytes);
  const int n = part.size(), me = part.me();
  const int64_t mine = bounds[me + 1] - bounds[me];
  std::vector<const std::byte*> sources(n);
  if (bytes > kAskBytes) {
    MT_ASSIGN_OR_RETURN(const std::vector<const std::byte*> at,
                        part.Whole(in, nullptr, bytes, false));
    if (!at.empty()) {
      for (int m = 0; m < n; ++m) sources[m] = at[m] + bounds[me] * width;
      Fold(call.parallel, reduce, out, sources, mine, width);
      MT_RETURN_IF_ERROR(part.End());
      return part.AwaitAll(kEnd);
    }
  }
  // A slot holds a piece for each member.
  const int64_t stride = kSlotBytes / n / 64 * 64, piece = stride / width;
  int64_t rounds = 0;
  for (int m = 0; m < n; ++m) {
    rounds = std::max(rounds, (bounds[m + 1] - bounds[m] + piece - 1) / piece);
  }
  return part.Rounds(
      rounds,
      [&](int64_t r, std::byte* slot) {
        for (int m = 0; m < n; ++m) {
          const int64_t left = bounds[m + 1] - bounds[m] - r * piece;
          if (m == me || left <= 0) continue;
          Copy(call.parallel, slot + m * stride, in + (bounds[m] + r * piece) * width,
               std::min(piece, left) * width);
        }
      },
      [&](int64_t r) {
        const int64_t count = std::min(piece, mine - r * piece);
        if (count <= 0) return OkStatus();
        for (int i = 1; i < n; ++i) {
          MT_ASSIGN_OR_RETURN(const std::byte* slot, part.Taken((me + i) % n, r));
          sources[(me + i) % n] = slot + me * stride;
        }
        sources[me] = in + (bounds[me] + r * piece) * width;
        Fold(call.parallel, reduce, out + r * piece * width, sources, count, width);
        return OkStatus();
      });
}

Status SharedMemory::AllGather(const HostCall& host, const std::byte* in, std::byte* out,
                               std::span<const int64_t> bounds, int only) {
  const Call& call = *host.call;
  Part part(*this, host, bounds.back() - bounds.front());
  const int n = part.size(), me = part.me();
  const bool takes = only < 0 || only == me, gives = only < 0 || only != me;
  const int64_t mine = bounds[me + 1] - bounds[me];
  const auto part_of = [&](int m) { return bounds[m + 1] - bounds[m]; };
  if (takes) Copy(call.parallel, out + bounds[me], in, mine);
  int64_t largest = 0;
  for (int m = 0; m < n; ++m) largest = std::max(largest, part_of(m));
  if (largest > kAskBytes) {
    MT_ASSIGN_OR_RETURN(const std::vector<const std::byte*> at,
                        part.Whole(in, nullptr, mine, false));
    if (!at.empty()) {
      for (int i = 1; takes && i < n; ++i) {
        const int member = (me + i) % n;
        Copy(call.parallel, out + bounds[member], at[member], part_of(member));
      }
      MT_RETURN_IF_ERROR(part.End());
      return part.AwaitAll(kEnd);
    }
  }
  return part.Rounds((largest + kSlotBytes - 1) / kSlotBytes,
                     [&](int64_t r, std::byte* slot) {
                       if (gives) {
                         Copy(call.parallel, slot, in + r * kSlotBytes,
                              std::clamp<int64_t>(mine - r * kSlotBytes, 0, kSlotBytes));
                       }
                     },
                     [&](int64_t r) {
                       for (int i = 1; takes && i < n; ++i) {
                         const int member = (me + i) % n;
                         const int64_t bytes =
                             std::min(kSlotBytes, part_of(member) - r * kSlotBytes);
                         if (bytes <= 0) continue;
                         MT_ASSIGN_OR_RETURN(const std::byte* slot, part.Taken(member, r));
                         Copy(call.parallel, out + bounds[member] + r * kSlotBytes, slot, bytes);
                       }
                       return OkStatus();
                     });
}

Status SharedMemory::AllToAll(const HostCall& host, const std::byte* in,
                              std::span<const Range> sends, std::byte* out,
                              std::span<const Range> receives) {
  const Call& call = *host.call;
  const int n = host.size(), me = host.me;
  const int64_t stride = kSlotBytes / n / 64 * 64;
  int64_t largest = 0;
  for (int m = 0; m < n; ++m) {
    if (m != me) largest = std::max({largest, sends[m].count, receives[m].count});
  }
  Part part(*this, host, largest * n);
  Copy(call.parallel, out + receives[me].begin, in + sends[me].begin, sends[me].count);
  return part.Rounds(
      (largest + stride - 1) / stride,
      [&](int64_t r, std::byte* slot) {
        for (int m = 0; m < n; ++m) {
          const int64_t bytes = std::min(stride, sends[m].count - r * stride);
          if (m != me && bytes > 0) {
            Copy(call.parallel, slot + m * stride, in + sends[m].begin + r * stride, bytes);
          }
        }
      },
      [&](int64_t r) {
        for (int i = 1; i < n; ++i) {
          const int member = (me + i) % n;
          const int64_t bytes = std::min(stride, receives[member].count - r * stride);
          if (bytes <= 0) continue;
          MT_ASSIGN_OR_RETURN(const std::byte* slot, part.Taken(member, r));
          Copy(call.parallel, out + receives[member].begin + r * stride, slot + me * stride, bytes);
        }
        return OkStatus();
      });
}

Status SharedMemory::Broadcast(const HostCall& host, int root, const std::byte* in, std::byte* out,
                               int64_t bytes) {
  const Call& call = *host.call;
  Part part(*this, host, bytes);
  const bool gives = part.me() == root;
  if (gives) Copy(call.parallel, out, in, bytes);
  return part.Rounds((bytes + kSlotBytes - 1) / kSlotBytes,
                     [&](int64_t r, std::byte* slot) {
                       if (gives) {
                         Copy(call.parallel, slot, in + r * kSlotBytes,
                              std::min(kSlotBytes, bytes - r * kSlotBytes));
                       }
                     },
                     [&](int64_t r) {
                       if (gives) return OkStatus();
                       MT_ASSIGN_OR_RETURN(const std::byte* slot, part.Taken(root, r));
                       Copy(call.parallel, out + r * kSlotBytes, slot,
                            std::min(kSlotBytes, bytes - r * kSlotBytes));
                       return OkStatus();
                     });
}

}  // namespace meshtrain::collective
