// The memory that one process shares with the others of its host. It belongs to a memfd, has no
// name anywhere and is gone with the last process that holds it, however that ends.
//
// Kept true: only its owner writes a segment; the others map it read-only. So a process that was
// stopped and wakes up in another incarnation can spoil nobody's memory.
//
// Layout: a head, slots through which payloads travel that lie elsewhere, then buckets (Allocate).
// The file is as large as the machine's memory, but has pages only where it was written to.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/collective/link/frame.h"
#include "runtime/collective/link/socket.h"

namespace meshtrain::collective {

// How far its owner has come, as a number that only rises within an incarnation (shm.cc says what
// it is made of).
struct SegmentHead {
  uint64_t magic = 0;
  alignas(64) std::atomic<uint64_t> ticket{0};
  std::atomic<uint64_t> incarnation{0};  // that the ticket, and all that is posted, is of
  std::atomic<uint32_t> tick{0};         // changes with each ticket: what waiters sleep on
  alignas(64) std::atomic<uint32_t> sleeps_on{
      0};  // process + 1 on whose tick the owner sleeps; 0: awake
};

// In front of each slot: what its bytes are of.
struct SlotHead {
  FrameHeader frame;
  int64_t input = -1;   // offset of the sender's payload, where it lies in its segment as a whole
  int64_t output = -1;  // the same of where its result goes
};

inline constexpr int kSlots = 6;
inline constexpr int64_t kSlotBytes = 512 << 10;  // payload of one round
inline constexpr int64_t kResultBytes =
    256 << 10;  // and what is computed from it, at most half as much
inline constexpr int64_t kSlotStride = 4096 + kSlotBytes + kResultBytes + 4096;
inline constexpr int64_t kSlotsBegin = 4096;
inline constexpr int64_t kBucketsBegin = kSlotsBegin + kSlots * kSlotStride;

// Of address space, on a host of so much memory. Every process of the host maps all segments: 256
// of the largest take half of what a process can address (2^47 bytes).
int64_t SegmentBytes(int64_t host_memory);

class Segment {
 public:
  // Errors: kUnavailable where the system gives no such memory.
  static Result<std::unique_ptr<Segment>> Create();
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int fd() const { return memory_.fd(); }
  SegmentHead& head() { return *reinterpret_cast<SegmentHead*>(base_); }
  SlotHead& slot(int i) {
    return *reinterpret_cast<SlotHead*>(base_ + kSlotsBegin + i * kSlotStride);
  }
  std::byte* payload(int i) { return base_ + kSlotsBegin + i * kSlotStride + 4096; }
  std::byte* result(int i) { return payload(i) + kSlotBytes; }
  // Where `bytes` from `data` on lie in the segment; -1: elsewhere.
  int64_t OffsetOf(const std::byte* data, int64_t bytes) const;

  // Zeros, from a page's start on; empty when the segment is full. Thread-safe.
  std::span<std::byte> Allocate(int64_t bytes);
  void Free(std::span<std::byte> memory);

 private:
  Segment(Socket memory, std::byte* base, int64_t size);

  Socket memory_;
  std::byte* base_;
  const int64_t size_;
  Mutex mutex_;
  std::map<int64_t, int64_t> free_ MT_GUARDED_BY(mutex_);  // offset -> bytes, neighbours joined
};

// Another process' segment, to be read only.
class PeerSegment {
 public:
  // Errors: kInvalidArgument (not a segment), kUnavailable (cannot be mapped).
  static Result<PeerSegment> Map(const Socket& memory);
  PeerSegment() = default;
  PeerSegment(PeerSegment&& other) noexcept;
  PeerSegment& operator=(PeerSegment&& other) noexcept;
  ~PeerSegment();

  explicit operator bool() const { return base_ != nullptr; }
  const SegmentHead& head() const { return *reinterpret_cast<const SegmentHead*>(base_); }
  const SlotHead& slot(int i) const {
    return *reinterpret_cast<const SlotHead*>(base_ + kSlotsBegin + i * kSlotStride);
  }
  const std::byte* payload(int i) const { return base_ + kSlotsBegin + i * kSlotStride + 4096; }
  const std::byte* result(int i) const { return payload(i) + kSlotBytes; }
  const std::byte* At(int64_t offset) const { return base_ + offset; }

 private:
  const std::byte* base_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace meshtrain::collective
