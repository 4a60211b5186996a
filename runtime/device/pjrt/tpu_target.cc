#include "runtime/device/pjrt/tpu_target.h"

#include <vector>

#include "runtime/base/text.h"

namespace meshtrain::device {
namespace {

constexpr TpuTarget kTargets[] = {
    {"v4-8", "v4:2x2x1", 8, "v4-8"},
    {"v4-16", "v4:2x2x2", 16, "v4-16"},
    {"v4-32", "v4:2x2x4", 32, "v4-32"},
    {"v4-64", "v4:2x4x4", 64, "v4-64"},
    {"v4-128", "v4:4x4x4", 128, "v4-128"},
    {"v5e-1", "v5e:1x1", 1, "v5litepod-1"},
    {"v5e-4", "v5e:2x2", 4, "v5litepod-4"},
    {"v5e-8", "v5e:2x4", 8, "v5litepod-8"},
    {"v5e-16", "v5e:4x4", 16, "v5litepod-16"},
    {"v5e-32", "v5e:4x8", 32, "v5litepod-32"},
    {"v5e-64", "v5e:8x8", 64, "v5litepod-64"},
    {"v5e-128", "v5e:8x16", 128, "v5litepod-128"},
    {"v5e-256", "v5e:16x16", 256, "v5litepod-256"},
    {"v5p-8", "v5p:2x2x1", 4, "v5p-8"},
    {"v5p-16", "v5p:2x2x2", 8, "v5p-16"},
    {"v5p-32", "v5p:2x2x4", 16, "v5p-32"},
    {"v5p-64", "v5p:2x4x4", 32, "v5p-64"},
    {"v5p-128", "v5p:4x4x4", 64, "v5p-128"},
    {"v6e-1", "v6e:1x1", 1, "v6e-1"},
    {"v6e-4", "v6e:2x2", 4, "v6e-4"},
    {"v6e-8", "v6e:2x4", 8, "v6e-8"},
    {"v6e-16", "v6e:4x4", 16, "v6e-16"},
    {"v6e-32", "v6e:4x8", 32, "v6e-32"},
    {"v6e-64", "v6e:8x8", 64, "v6e-64"},
    {"v6e-128", "v6e:8x16", 128, "v6e-128"},
    {"v6e-256", "v6e:16x16", 256, "v6e-256"},
};

}  // namespace

std::span<const TpuTarget> TpuTargets() { return kTargets; }

Result<TpuTarget> ParseTpuTarget(std::string_view text) {
  std::vector<std::string> names;
  for (const TpuTarget& target : kTargets) {
    names.push_back("tpu:" + std::string(target.name));
    if (names.back() == text) return target;
  }
  const std::string whole = (text.starts_with("tpu:") ? "" : "tpu:") + std::string(text);
  return InvalidArgument("target: expected one of " + Join(names, ", ") +
                         ", got: " + Excerpt(text) + DidYouMean(whole, names))
      .From(Origin::kManifest);
}

}  // namespace meshtrain::device
