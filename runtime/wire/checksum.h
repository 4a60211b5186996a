// XXH3 of 64 bits: what every frame carries of its payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;  // the library's

namespace meshtrain::wire {

uint64_t Checksum(const void* data, size_t bytes);
inline uint64_t Checksum(std::string_view text) { return Checksum(text.data(), text.size()); }

// The same of bytes that come piece by piece.
class RunningChecksum {
 public:
  RunningChecksum();
  void Add(const void* data, size_t bytes);
  uint64_t value() const;  // of what was added until now

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

// 16 digits: a checksum or a hash as messages show it.
std::string HexText(uint64_t value);

}  // namespace meshtrain::wire
