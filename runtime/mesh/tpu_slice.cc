#include "runtime/mesh/tpu_slice.h"

namespace meshtrain::mesh {
namespace {

constexpr TpuSlice kSlices[] = {
    {"v4-8", "v4", "2x2x1", 8, 4, 4, "v4-8"},
    {"v4-16", "v4", "2x2x2", 16, 8, 4, "v4-16"},
    {"v4-32", "v4", "2x2x4", 32, 16, 4, "v4-32"},
    {"v4-64", "v4", "2x4x4", 64, 32, 4, "v4-64"},
    {"v4-128", "v4", "4x4x4", 128, 64, 4, "v4-128"},
    {"v5e-1", "v5e", "1x1", 1, 1, 1, "v5litepod-1"},
    {"v5e-4", "v5e", "2x2", 4, 4, 4, "v5litepod-4"},
    {"v5e-8", "v5e", "2x4", 8, 8, 8, "v5litepod-8"},
    {"v5e-16", "v5e", "4x4", 16, 16, 4, "v5litepod-16"},
    {"v5e-32", "v5e", "4x8", 32, 32, 4, "v5litepod-32"},
    {"v5e-64", "v5e", "8x8", 64, 64, 4, "v5litepod-64"},
    {"v5e-128", "v5e", "8x16", 128, 128, 4, "v5litepod-128"},
    {"v5e-256", "v5e", "16x16", 256, 256, 4, "v5litepod-256"},
    {"v5p-8", "v5p", "2x2x1", 4, 4, 4, "v5p-8"},
    {"v5p-16", "v5p", "2x2x2", 8, 8, 4, "v5p-16"},
    {"v5p-32", "v5p", "2x2x4", 16, 16, 4, "v5p-32"},
    {"v5p-64", "v5p", "2x4x4", 32, 32, 4, "v5p-64"},
    {"v5p-128", "v5p", "4x4x4", 64, 64, 4, "v5p-128"},
    {"v6e-1", "v6e", "1x1", 1, 1, 1, "v6e-1"},
    {"v6e-4", "v6e", "2x2", 4, 4, 4, "v6e-4"},
    {"v6e-8", "v6e", "2x4", 8, 8, 8, "v6e-8"},
    {"v6e-16", "v6e", "4x4", 16, 16, 4, "v6e-16"},
    {"v6e-32", "v6e", "4x8", 32, 32, 4, "v6e-32"},
    {"v6e-64", "v6e", "8x8", 64, 64, 4, "v6e-64"},
    {"v6e-128", "v6e", "8x16", 128, 128, 4, "v6e-128"},
    {"v6e-256", "v6e", "16x16", 256, 256, 4, "v6e-256"},
};

}  // namespace

std::span<const TpuSlice> TpuSlices() { return kSlices; }

const TpuSlice* FindTpuSlice(std::string_view name) {
  for (const TpuSlice& slice : kSlices) {
    if (slice.name == name) return &slice;
  }
  return nullptr;
}

}  // namespace meshtrain::mesh
