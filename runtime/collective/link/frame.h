// The header in front of every payload between processes, and what is wrong with one that was not
// expected. Pure.
//
// A frame says to which collective of which incarnation and plan it belongs, so that a peer that is
// a round ahead, runs another plan or lives in the past is found out by the first byte it sends.
// Layout, little-endian, 64 bytes:
//
//    0 magic "MTCF"   4 version u16   6 zero u16      8 incarnation u64   16 plan hash u64
//   24 collective u64
//   32 call u64      40 source u32   44 round u32     48 length u32        52 header's check u32
//   56 XXH3-64 of the payload
//
// The header's check is the low half of XXH3-64 over bytes 0..51 and 56..63.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace meshtrain::collective {

inline constexpr size_t kFrameHeaderBytes = 64;
using FrameBytes = std::array<std::byte, kFrameHeaderBytes>;

struct FrameHeader {
  uint64_t incarnation = 0;
  uint64_t plan_hash = 0;
  uint64_t collective = 0;  // 1, 2, ... within the incarnation
  uint64_t call = 0;        // CallDigest
  uint32_t source = 0;      // the sending process
  uint32_t round = 0;       // of the schedule
  uint32_t length = 0;      // of the payload, in bytes
  uint64_t checksum = 0;    // of the payload
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

void EncodeFrame(const FrameHeader& header, FrameBytes& out);
// Errors: kUnavailable (bytes changed on the way), kFailedPrecondition (another version's frame).
Result<FrameHeader> DecodeFrame(const FrameBytes& bytes);

// The first thing in which a frame differs from the one that was expected, in the order of what it
// says most about.
enum class FrameDifference : uint8_t {
  kNone,
  kIncarnation,
  kSource,
  kPlan,
  kCollective,
  kCall,
  kRound,
  kLength
};
// Checksums are not compared: they are the payload's.
FrameDifference Compare(const FrameHeader& got, const FrameHeader& want);

// Where one side stands, for messages.
struct Standing {
  uint64_t collective = 0;
  std::string what;  // GroupCall::what; may be empty where it is not known
};

// "worker-2 is at collective 41 (all_reduce of %31), we are at 42 (all_gather of %7)"
//   kUnavailable, of kPeers: the others went on without us, who join them again.
//   kFailedPrecondition: both sides' programs diverge; nothing that a retry mends.
Status Diverged(FrameDifference difference, const FrameHeader& got, const FrameHeader& want,
                std::string_view peer, const Standing& theirs, const Standing& ours);

// What makes two calls the same: `parts` are its numbers (kind, axes, type, count, ...), `what`
// counts up to " at ", after which it may name a source line of another build.
uint64_t CallDigest(std::span<const int64_t> parts, std::string_view what);

}  // namespace meshtrain::collective
