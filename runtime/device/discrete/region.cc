#include "runtime/device/discrete/region.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/base/check.h"

namespace meshtrain::device {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kHuge = int64_t{2} << 20;
constexpr int64_t kAddresses = int64_t{64} << 30;

int64_t Pages(int64_t bytes) { return std::max<int64_t>(1, (bytes + kPage - 1) / kPage) * kPage; }

}  // namespace

Result<std::shared_ptr<Region>> Region::Create(int device, int64_t limit) {
  std::shared_ptr<Region> made(new Region(device, limit));
  // One huge page more, to begin at one.
  void* at = mmap(nullptr, kAddresses + kHuge, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    return FailedPrecondition("discrete: device " + std::to_string(device) +
                              ": expected addresses for its memory, got: " + std::strerror(errno));
  }
  made->mapped_ = at;
  const auto address = reinterpret_cast<uintptr_t>(at);
  made->base_ = static_cast<std::byte*>(at) + (kHuge - address % kHuge) % kHuge;
  // Few pages to protect; that the system has none so large does not matter.
  (void)madvise(made->base_, kAddresses, MADV_HUGEPAGE);
  return made;
}

Region::~Region() {
  if (mapped_ != nullptr) (void)munmap(mapped_, kAddresses + kHuge);
}

Result<std::byte*> Region::Take(int64_t bytes) {
  const int64_t want = Pages(bytes);
  MutexLock lock(mutex_);
  const int64_t most = limit_ > 0 ? limit_ : kAddresses;
  if (bytes < 0 || used_ + want > most) {
    return FailedPrecondition("discrete: device " + std::to_string(device_) + ": expected " +
                              std::to_string(want) + " bytes of its memory of " +
                              std::to_string(most) + ", got: " + std::to_string(most - used_) +
                              " that are free");
  }
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, size] = *it;
    if (size < want) continue;
    free_.erase(it);
    if (size > want) free_.emplace(offset + want, size - want);
    again_.emplace_back(offset, want);
    used_ += want;
    return base_ + offset;
  }
  if (high_ + want > kAddresses) {
    return FailedPrecondition("discrete: device " + std::to_string(device_) +
                              ": its memory is in pieces");
  }
  used_ += want;
  return base_ + std::exchange(high_, high_ + want);
}

void Region::Give(std::byte* at, int64_t bytes) {
  const int64_t size = Pages(bytes);
  // Whole huge pages go back to the system. A part of one would break it into small ones, and
  // changing the protection of these takes a hundred times as long.
  const int64_t begin = (at - base_ + kHuge - 1) / kHuge * kHuge;
  const int64_t end = (at - base_ + size) / kHuge * kHuge;
  if (begin < end) {
    MT_CHECK(madvise(base_ + begin, static_cast<size_t>(end - begin), MADV_DONTNEED) == 0);
  }
  MutexLock lock(mutex_);
  used_ -= size;
  int64_t offset = at - base_, length = size;
  const auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + length) {
    length += after->second;
    free_.erase(after);
  }
  const auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      length += before->second;
      free_.erase(before);
    }
  }
  free_.emplace(offset, length);
}

void Region::Protect(bool open) {
  std::vector<std::pair<int64_t, int64_t>> again;
  if (open) {
    MutexLock lock(mutex_);
    opened_ = (high_ + kHuge - 1) / kHuge * kHuge;  // no huge page is cut in two
    again.swap(again_);
  }
  if (opened_ == 0) return;
  MT_CHECK(mprotect(base_, static_cast<size_t>(opened_),
                    open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
  for (const auto& [offset, bytes] : again) {
    std::memset(base_ + offset, 0, static_cast<size_t>(bytes));
  }
}

Result<Taken> Taken::Create(std::shared_ptr<Region> region, int64_t bytes) {
  Taken taken;
  MT_ASSIGN_OR_RETURN(taken.data_, region->Take(bytes));
  taken.region_ = std::move(region);
  taken.bytes_ = bytes;
  return taken;
}

Taken& Taken::operator=(Taken&& other) noexcept {
  std::swap(region_, other.region_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Taken::~Taken() {
  if (region_ != nullptr) region_->Give(data_, bytes_);
}

}  // namespace meshtrain::device
