// Which layouts a weight's blocks, as the heads of attention, allow.
#pragma once

#include <set>
#include <string>

#include "runtime/base/text.h"
#include "runtime/nn/parameter.h"

namespace meshtrain::nn {

// `specs` on a mesh, as Parameter::LayoutOn, but that the axes `gathered` may cut a block: those
// that split the examples, over which a weight's parts are gathered before they are used.
inline Result<mesh::Layout> LayoutOfWeight(const Parameter& weight, const mesh::Mesh& mesh,
                                           const LayoutSpecs& specs,
                                           const std::set<std::string, std::less<>>& gathered) {
  LayoutSpecs kept;
  for (const std::string& spec : specs) {
    std::string& left = kept.emplace_back();
    for (const std::string& axis : Split(spec, '+')) {
      if (gathered.contains(axis)) continue;
      left += (left.empty() ? "" : "+") + axis;
    }
  }
  MT_RETURN_IF_ERROR(weight.LayoutOn(mesh, kept).status());
  return mesh::Layout::FromSpecs(specs, mesh);
}

}  // namespace meshtrain::nn
