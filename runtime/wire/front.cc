#include "runtime/wire/front.h"

#include "runtime/base/check.h"
#include "runtime/wire/bytes.h"

namespace meshtrain::wire {

void PutFront(uint32_t magic, const Front& front, void* to) {
  MT_CHECK(front.head_bytes <= kMaxHeadBytes);
  auto* const at = static_cast<std::byte*>(to);
  Put(magic, at);
  Put(static_cast<uint32_t>(front.head_bytes), at + 4);
  Put(front.payload_bytes, at + 8);
}

std::optional<Front> GetFront(uint32_t magic, const void* from) {
  const auto* const at = static_cast<const std::byte*>(from);
  if (Get<uint32_t>(at) != magic) return std::nullopt;
  return Front{.head_bytes = Get<uint32_t>(at + 4), .payload_bytes = Get<uint64_t>(at + 8)};
}

}  // namespace meshtrain::wire
