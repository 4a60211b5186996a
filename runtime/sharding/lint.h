// What the planner refuses to do silently.
#pragma once

#include <string>
#include <vector>

#include "runtime/sharding/factors.h"
#include "runtime/sharding/reshard.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain::sharding {

// Every shard of `type` under `layout` is full. Errors: kInvalidArgument naming `what`, the
// dimension and the axis.
Status CheckEven(const std::string& what, const Layout& layout, const program::TensorType& type);

// Per value: it is made of states as the step finds them, and of nothing that is fed.
std::vector<bool> OfStates(const Program& program);

// What an op, split so, may gather of an operand without a word: less than `limit_bytes` on each
// device, and what was asked for: a `relayout`, and a weight (or what is made of weights alone)
// over axes that split something else of the op. So lies a weight in parts over the batch's axes
// (ZeRO-3): its layout and the batch's say that each use of it gathers it.
GatherLimit LimitFor(const program::Op& op, const Split& split, bool of_states,
                     int64_t limit_bytes);

// What is said of a value that a step would gather although nobody asked for it.
//   value   "%12 f32[784,700] of matmul at model.cc:31"
//   gather  RefusedGather's
//   reason  "input 0 of softmax (head) at model.cc:33"
//   advice  what the user can do instead, "give output `y` a layout"
Status SilentReplication(const std::string& value, const Layout& from, const Move& gather,
                         const std::string& reason, const std::string& advice,
                         const GatherLimit& limit);

}  // namespace meshtrain::sharding
