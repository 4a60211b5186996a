// What processes tell each other beside the collectives, on a connection of their own: that an
// incarnation is over and why, that one leaves, where one stands. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace meshtrain::collective {

enum class ControlKind : uint8_t {
  kFailed = 1,   // code, text: the sender's incarnation is over
  kGoodbye = 2,  // the sender is done and leaves
  kAsk = 3,      // sequence, collective: where are you, and what was that collective?
  kAnswer = 4,   // sequence, collective, inside, plan_hash, call, text (of `collective`), asked
};

struct ControlMessage {
  ControlKind kind = ControlKind::kGoodbye;
  StatusCode code = StatusCode::kOk;
  bool inside = false;
  uint64_t sequence = 0;
  uint64_t collective = 0;
  uint64_t plan_hash = 0;
  uint64_t call = 0;
  std::string text;
  std::string asked;
};

inline constexpr size_t kControlHeaderBytes = 48;
inline constexpr size_t kControlMaxText = 2048;  // of each of the two; longer ones are cut

std::string EncodeControl(const ControlMessage& message);
// Takes the first message off `bytes`, if it is there whole; then true. Errors: kFailedPrecondition
// (no such message).
Result<bool> TakeControl(std::string& bytes, ControlMessage& out);

}  // namespace meshtrain::collective
