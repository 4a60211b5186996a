// The memory of one device: a range of addresses that nobody can touch but for who holds it open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace meshtrain::device {

// Threads: Take and Give from any; Open and Close from one.
class Region {
 public:
  // `limit`: bytes that may be taken; 0: as many as there are addresses. Errors:
  // kFailedPrecondition (no addresses).
  static Result<std::shared_ptr<Region>> Create(int device, int64_t limit);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Zeros once it is open, aligned to a page. Errors: kFailedPrecondition (more than there is).
  Result<std::byte*> Take(int64_t bytes);
  void Give(std::byte* at, int64_t bytes);

  int device() const { return device_; }
  void Open() { Protect(true); }
  void Close() { Protect(false); }

 private:
  Region(int device, int64_t limit) : device_(device), limit_(limit) {}
  void Protect(bool open);

  const int device_;
  const int64_t limit_;
  void* mapped_ = nullptr;
  std::byte* base_ = nullptr;  // in it, where a huge page begins
  int64_t opened_ = 0;         // bytes from base_ on; 0: closed
  Mutex mutex_;
  int64_t used_ MT_GUARDED_BY(mutex_) = 0;                 // bytes that are taken
  int64_t high_ MT_GUARDED_BY(mutex_) = 0;                 // none beyond was ever taken
  std::map<int64_t, int64_t> free_ MT_GUARDED_BY(mutex_);  // offset: bytes, below high_
  // Taken again since the region was open last: what was there before is still to be zeroed.
  std::vector<std::pair<int64_t, int64_t>> again_ MT_GUARDED_BY(mutex_);  // offset, bytes
};

// Bytes of a region, given back with the object.
class Taken {
 public:
  static Result<Taken> Create(std::shared_ptr<Region> region, int64_t bytes);
  Taken() = default;
  Taken(Taken&& other) noexcept { *this = std::move(other); }
  Taken& operator=(Taken&& other) noexcept;
  ~Taken();
  std::byte* data() const { return data_; }

 private:
  std::shared_ptr<Region> region_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Holds a region open.
class Opened {
 public:
  explicit Opened(Region& region) : region_(region) { region_.Open(); }
  ~Opened() { region_.Close(); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  Region& region_;
};

}  // namespace meshtrain::device
