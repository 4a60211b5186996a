// The blocks of a model that are alike: layers `blocks.0.x`, `blocks.1.x`, ..., as `repeat` of a
// manifest writes them out. What is good for one of them is good for all, so that it can be looked
// for on a model of few. Pure.
#pragma once

#include <string>
#include <string_view>

#include "runtime/manifest/program.h"

namespace meshtrain::recipe {

// A path whose parts that are whole numbers are `*`: "blocks.*.attention.query.kernel". Equal for
// what stands at the same place of alike blocks.
std::string PlaceInBlocks(std::string_view path);

// The model with the first `most` (>= 2) of each run of alike blocks: one after another, of equal
// layers, each but the first linked to the one before as all are. Layers behind a run take from its
// last block what they took from the last before. A model that names blocks otherwise comes back as
// it is. Blocks are compared by their layers, not by their shapes: where each block leaves another
// shape than it was given, the shorter model may have other weights, or be none.
manifest::Model WithFewerBlocks(const manifest::Model& model, int64_t most);

}  // namespace meshtrain::recipe
