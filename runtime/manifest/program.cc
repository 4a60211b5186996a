#include "runtime/manifest/program.h"

#include <tuple>

namespace meshtrain::manifest {
namespace {

auto Said(const Program& p) {
  return std::tie(p.seed, p.mesh, p.devices, p.data, p.model, p.loss, p.optimizer, p.metrics,
                  p.outputs, p.layout, p.train, p.generate, p.parameter_server, p.mirrored,
                  p.multi_worker_mirrored, p.initial_weights, p.strict, p.own);
}

}  // namespace

bool operator==(const Program& a, const Program& b) { return Said(a) == Said(b); }

Packing Program::packing() const {
  if (mirrored) return mirrored->packing;
  return multi_worker_mirrored ? multi_worker_mirrored->packing : Packing{};
}

Place Program::PlaceOf(std::string_view field) const {
  for (;;) {
    const auto found = places.find(std::string(field));
    if (found != places.end()) return found->second;
    if (field.empty()) return {};
    const size_t dot = field.rfind('.');
    field = dot == std::string_view::npos ? "" : field.substr(0, dot);
  }
}

std::string Program::Where(std::string_view field) const {
  return At(file, PlaceOf(field), "") + path + "." + std::string(field);
}

const std::vector<std::string>& CrossDeviceOpsNames() {
  static const std::vector<std::string> kNames = {"Auto", "NCCL", "HierarchicalCopy",
                                                  "ReductionToOneDevice", "Ring"};
  return kNames;
}

}  // namespace meshtrain::manifest
