// The order of elements, as streams of their numbers: what shuffle, batch and repeat do, without
// touching a byte of data. That makes skipping ahead (restoring a cursor) cheap and exact. Pure but
// for the state that each stream keeps.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "runtime/data/element.h"

namespace meshtrain::data {

// Equal (seed, pass) give equal orders: every Reset starts that pass from its beginning.
template <typename T>
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void Reset(int64_t pass) = 0;
  // False at the end of the pass, and after it until Reset.
  virtual bool Next(T* out) = 0;
};

class Count final : public Stream<Element> {
 public:
  explicit Count(int64_t size) : size_(size) {}
  void Reset(int64_t pass) override {
    next_ = 0;
    pass_ = pass;
  }
  bool Next(Element* out) override {
    if (next_ >= size_) return false;
    *out = {next_++, pass_};
    return true;
  }

 private:
  int64_t size_;
  int64_t next_ = 0;
  int64_t pass_ = 0;
};

// Uniform in [0, bound), the same on every machine (std::uniform_int_distribution is not): Lemire,
// "Fast random integer generation in an interval", with rejection, so without bias.
inline uint64_t UniformBelow(std::mt19937_64& random, uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(random()) * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t threshold = -bound % bound;
    while (static_cast<uint64_t>(product) < threshold) {
      product = static_cast<Wide>(random()) * bound;
    }
  }
  return static_cast<uint64_t>(product >> 64);
}

// tf.data's: fill a buffer; draw one of it, put the next input in its place.
template <typename T>
class Shuffled final : public Stream<T> {
 public:
  Shuffled(std::unique_ptr<Stream<T>> input, int64_t buffer, uint64_t seed, bool reshuffle)
      : input_(std::move(input)),
        size_(static_cast<size_t>(buffer)),
        seed_(seed),
        reshuffle_(reshuffle) {}

  void Reset(int64_t pass) override {
    input_->Reset(pass);
    const auto p = static_cast<uint64_t>(reshuffle_ ? pass : 0);
    std::seed_seq words{static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32),
                        static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32)};
    random_.seed(words);
    buffer_.clear();
    more_ = true;
  }

  bool Next(T* out) override {
    T item;
    while (more_ && buffer_.size() < size_) {
      if ((more_ = input_->Next(&item))) buffer_.push_back(std::move(item));
    }
    if (buffer_.empty()) return false;
    const size_t at = UniformBelow(random_, buffer_.size());
    *out = std::move(buffer_[at]);
    if (more_ && (more_ = input_->Next(&item))) {
      buffer_[at] = std::move(item);
    } else {
      if (at + 1 != buffer_.size()) buffer_[at] = std::move(buffer_.back());
      buffer_.pop_back();
    }
    return true;
  }

 private:
  std::unique_ptr<Stream<T>> input_;
  size_t size_;
  uint64_t seed_;
  bool reshuffle_;
  std::mt19937_64 random_;
  std::vector<T> buffer_;
  bool more_ = true;
};

// `count` passes of the input as one; -1: for ever, and each begins where no other comes.
template <typename T>
class Repeated final : public Stream<T> {
 public:
  Repeated(std::unique_ptr<Stream<T>> input, int64_t count)
      : input_(std::move(input)), count_(count) {}

  void Reset(int64_t pass) override {
    first_ = count_ < 0 ? pass << 32 : pass * count_;
    done_ = 0;
    input_->Reset(first_);
  }
  bool Next(T* out) override {
    for (;;) {
      if (input_->Next(out)) return true;
      if (count_ >= 0 && done_ + 1 >= count_) return false;
      input_->Reset(first_ + ++done_);
    }
  }

 private:
  std::unique_ptr<Stream<T>> input_;
  int64_t count_;
  int64_t first_ = 0;
  int64_t done_ = 0;
};

class Batched final : public Stream<std::vector<Element>> {
 public:
  Batched(std::unique_ptr<Stream<Element>> input, int64_t size, bool drop_remainder)
      : input_(std::move(input)),
        size_(static_cast<size_t>(size)),
        drop_remainder_(drop_remainder) {}

  void Reset(int64_t pass) override { input_->Reset(pass); }
  bool Next(std::vector<Element>* out) override {
    out->clear();
    Element element;
    while (out->size() < size_ && input_->Next(&element)) out->push_back(element);
    return out->size() == size_ || (!out->empty() && !drop_remainder_);
  }

 private:
  std::unique_ptr<Stream<Element>> input_;
  size_t size_;
  bool drop_remainder_;
};

}  // namespace meshtrain::data
