// What begins everything that has a head and a payload, on a link as in a file (little-endian):
//
//   u32 magic | u32 head bytes | u64 payload bytes
//
// The magic tells which kind it is; a checksum of these bytes follows where the kind says. Frames
// of collectives, which are many and small, have one header of a fixed size instead
// (collective/link/frame.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace meshtrain::wire {

inline constexpr size_t kFrontBytes = 16;
// A longer head is damage.
inline constexpr uint64_t kMaxHeadBytes = uint64_t{1} << 30;

struct Front {
  uint64_t head_bytes = 0;  // at most kMaxHeadBytes
  uint64_t payload_bytes = 0;
  friend bool operator==(const Front&, const Front&) = default;
};

void PutFront(uint32_t magic, const Front& front, void* to);
// nullopt for bytes of another kind. Whether the head is too long is for the caller to say.
std::optional<Front> GetFront(uint32_t magic, const void* from);

}  // namespace meshtrain::wire
