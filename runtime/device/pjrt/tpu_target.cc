#include "runtime/device/pjrt/tpu_target.h"

#include <vector>

#include "runtime/base/text.h"

namespace meshtrain::device {

Result<mesh::TpuSlice> ParseTpuTarget(std::string_view text) {
  std::vector<std::string> names;
  for (const mesh::TpuSlice& slice : mesh::TpuSlices()) {
    names.push_back("tpu:" + std::string(slice.name));
    if (names.back() == text) return slice;
  }
  const std::string whole = (text.starts_with("tpu:") ? "" : "tpu:") + std::string(text);
  return InvalidArgument("target: expected one of " + Join(names, ", ") +
                         ", got: " + Excerpt(text) + DidYouMean(whole, names))
      .From(Origin::kManifest);
}

std::string LibtpuTopology(const mesh::TpuSlice& slice) {
  return std::string(slice.generation) + ":" + std::string(slice.topology);
}

}  // namespace meshtrain::device
