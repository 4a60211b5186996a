// What the planner refuses to do silently.
#pragma once

#include <string>

#include "runtime/sharding/sharding.h"

namespace meshtrain::sharding {

// Every shard of `type` under `layout` is full. Errors: kInvalidArgument naming `what`, the
// dimension and the axis.
Status CheckEven(const std::string& what, const Layout& layout, const program::TensorType& type);

// A value of at least options.replication_limit_bytes is about to be gathered whole onto every
// device.
//   value   "%12 f32[784,700] of matmul at model.cc:31"
//   reason  "input 0 of softmax (head) at model.cc:33"
//   advice  what the user can do instead, "give output `y` a layout"
Status CheckReplication(const std::string& value, const program::TensorType& type,
                        const Layout& from, const Layout& to, const std::string& reason,
                        const std::string& advice, const Options& options);

}  // namespace meshtrain::sharding
