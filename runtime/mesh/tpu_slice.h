// The TPU slices that a job can ask for, by the names under which they are rented. Sizes and
// shapes: Cloud TPU's documentation of its configurations; chips of a machine: GKE's of its machine
// types.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace meshtrain::mesh {

// Chips that are wired to each other.
struct TpuSlice {
  std::string_view name;        // "v5e-8"
  std::string_view generation;  // of the chips: "v5e"
  std::string_view topology;    // chips along each dimension: "2x4"
  int devices = 0;  // v4's number counts its two cores a chip, each a device of its own;
                    // v5p's counts cores too, but a chip's two are one device
  int chips = 0;
  int chips_per_host = 0;        // of the machines that the slice is made of
  std::string_view accelerator;  // the cloud's name, "v5litepod-8"

  int hosts() const { return chips / chips_per_host; }
};
// By generation, then by size.
std::span<const TpuSlice> TpuSlices();
// Null: there is none of that name.
const TpuSlice* FindTpuSlice(std::string_view name);

}  // namespace meshtrain::mesh
