#include "runtime/collective/memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace meshtrain::collective {
namespace {

constexpr uint64_t kMagic = 0x314745535f54494dULL;
constexpr int64_t kPage = 4096;

static_assert(sizeof(SegmentHead) <= kSlotsBegin && sizeof(SlotHead) <= 4096);
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

#ifdef __SANITIZE_THREAD__
constexpr int64_t kLargest = int64_t{8} << 30;  // it leaves a process about 1.5 TiB to map
#else
constexpr int64_t kLargest = int64_t{256} << 30;
#endif

int64_t RoundUp(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

int64_t SegmentBytes(int64_t host_memory) {
  return std::max(RoundUp(std::min(host_memory, kLargest)), kBucketsBegin + (64 << 20));
}

Result<std::unique_ptr<Segment>> Segment::Create() {
  const auto failed = [](const char* what) {
    return Unavailable(std::string("shared memory: ") + what + ": " + std::strerror(errno));
  };
  Socket memory(memfd_create("meshtrain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return failed("memfd_create");
  const int64_t size = SegmentBytes(sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
  if (ftruncate(memory.fd(), size) != 0) return failed("ftruncate");
  // A reader's map can then never end before its reads do.
  if (fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return failed("seal");
  }
  void* base =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory.fd(), 0);
  if (base == MAP_FAILED) return failed("mmap");
  madvise(base, size, MADV_DONTDUMP);
  return std::unique_ptr<Segment>(
      new Segment(std::move(memory), static_cast<std::byte*>(base), size));
}

Segment::Segment(Socket memory, std::byte* base, int64_t size)
    : memory_(std::move(memory)), base_(base), size_(size) {
  new (base_) SegmentHead{.magic = kMagic};
  for (int i = 0; i < kSlots; ++i) new (&slot(i)) SlotHead;
  free_[kBucketsBegin] = size_ - kBucketsBegin;
}

Segment::~Segment() { munmap(base_, size_); }

int64_t Segment::OffsetOf(const std::byte* data, int64_t bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(data), base = reinterpret_cast<uintptr_t>(base_);
  if (at < base || at - base > static_cast<uintptr_t>(size_) ||
      bytes > size_ - static_cast<int64_t>(at - base)) {
    return -1;
  }
  return static_cast<int64_t>(at - base);
}

std::span<std::byte> Segment::Allocate(int64_t bytes) {
  if (bytes <= 0) return {};
  const int64_t wanted = RoundUp(bytes);
  MutexLock lock(mutex_);
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    if (at->second < wanted) continue;
    const auto [offset, size] = *at;
    free_.erase(at);
    if (size > wanted) free_[offset + wanted] = size - wanted;
    return {base_ + offset, static_cast<size_t>(bytes)};
  }
  return {};
}

void Segment::Free(std::span<std::byte> memory) {
  if (memory.empty()) return;
  int64_t offset = memory.data() - base_;
  int64_t size = RoundUp(static_cast<int64_t>(memory.size()));
  // Gives the pages back, and zeros to whoever gets the place next.
  static_cast<void>(fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size));
  MutexLock lock(mutex_);
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && offset + size == after->first) {
    size += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_[offset] = size;
}

Result<PeerSegment> PeerSegment::Map(const Socket& memory) {
  struct stat about {};
  const int seals = fcntl(memory.fd(), F_GET_SEALS);
  if (fstat(memory.fd(), &about) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      about.st_size < kBucketsBegin) {
    return InvalidArgument("shared memory: expected a peer's sealed segment, got: something else");
  }
  void* base = mmap(nullptr, about.st_size, PROT_READ, MAP_SHARED | MAP_NORESERVE, memory.fd(), 0);
  if (base == MAP_FAILED) {
    return Unavailable(std::string("shared memory: mmap: ") + std::strerror(errno));
  }
  madvise(base, about.st_size, MADV_DONTDUMP);
  PeerSegment peer;
  peer.base_ = static_cast<const std::byte*>(base);
  peer.size_ = about.st_size;
  if (peer.head().magic != kMagic) {
    return InvalidArgument(
        "shared memory: expected the segment of a peer of this version, got: other bytes");
  }
  return peer;
}

PeerSegment::PeerSegment(PeerSegment&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PeerSegment& PeerSegment::operator=(PeerSegment&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

PeerSegment::~PeerSegment() {
  if (base_ != nullptr) munmap(const_cast<std::byte*>(base_), size_);
}

}  // namespace meshtrain::collective
