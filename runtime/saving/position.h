// Where a training loop stands, in a checkpoint.
#pragma once

#include <map>
#include <string>

#include "runtime/base/status.h"
#include "runtime/checkpoint/index.h"
#include "runtime/train/loop.h"

namespace meshtrain::saving {

// As a checkpoint's metadata, bit for bit.
std::map<std::string, std::string> PositionToMetadata(const train::Position& position);
// `path` is for messages. Errors: kDataLoss. A checkpoint from before figures were means over
// examples says nothing of the examples of its epoch (it holds sums of batch means, `sum.NAME`):
// the figures of that epoch are then those of the examples after it.
Result<train::Position> PositionOf(const checkpoint::Index& index, const std::string& path);

}  // namespace meshtrain::saving
