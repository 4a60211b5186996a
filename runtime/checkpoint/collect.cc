#include "runtime/checkpoint/collect.h"

#include <map>
#include <utility>

namespace meshtrain::checkpoint {

Result<std::vector<Assignment>> AssignParts(std::span<const VariableSpec> variables) {
  std::vector<Assignment> out;
  std::map<int, int64_t> bytes_of;  // per process
  for (size_t i = 0; i < variables.size(); ++i) {
    const VariableSpec& v = variables[i];
    const auto bad = [&](const std::string& message) {
      return InvalidArgument("checkpoint: variable `" + v.name + "`: " + message);
    };
    if (v.layout.IsPartial()) {
      return bad("expected a layout without pending sums, got: " + v.layout.ToString());
    }
    if (v.layout.rank() != v.type.rank()) {
      return bad("expected a layout of rank " + std::to_string(v.type.rank()) +
                 ", got: " + v.layout.ToString());
    }
    if (!(v.layout.mesh() == variables[0].layout.mesh())) {
      return bad("expected the mesh " + variables[0].layout.mesh().ToString() +
                 ", got: " + v.layout.mesh().ToString());
    }
    const auto& devices = v.layout.mesh().devices();
    struct Part {
      mesh::Layout::Slice slice;
      std::vector<int64_t> holders;
    };
    std::map<std::pair<mesh::Dims, mesh::Dims>, Part> parts;
    for (int64_t rank = 0; rank < v.layout.mesh().size(); ++rank) {
      mesh::Layout::Slice slice = v.layout.SliceOf(rank, v.type.dims);
      if (mesh::NumElements(slice.sizes) == 0) continue;
      Part& part = parts[{slice.offsets, slice.sizes}];
      part.slice = std::move(slice);
      part.holders.push_back(rank);
    }
    for (auto& [key, part] : parts) {
      int64_t best = part.holders.front();
      for (const int64_t rank : part.holders) {
        if (bytes_of[devices[rank].process] < bytes_of[devices[best].process]) best = rank;
      }
      bytes_of[devices[best].process] +=
          mesh::NumElements(part.slice.sizes) * mesh::DTypeBytes(v.type.dtype);
      out.push_back({static_cast<int>(i), best, std::move(part.slice)});
    }
  }
  return out;
}

Result<std::vector<SavedVariable>> Collect(std::span<const VariableSpec> variables, int process,
                                           const FetchLocal& fetch) {
  MT_ASSIGN_OR_RETURN(const std::vector<Assignment> assignments, AssignParts(variables));
  std::vector<SavedVariable> out;
  for (const VariableSpec& v : variables) out.push_back({v.name, v.type, v.layout.ToString(), {}});
  for (const Assignment& a : assignments) {
    const VariableSpec& v = variables[a.variable];
    if (v.layout.mesh().devices()[a.rank].process != process) continue;
    MT_ASSIGN_OR_RETURN(mesh::Tensor local, fetch(a.variable, a.rank));
    if (local.dims() != a.slice.sizes) {
      MT_ASSIGN_OR_RETURN(const mesh::Dims storage, v.layout.LocalShape(v.type.dims));
      if (local.dims() != storage) {
        return Internal("checkpoint: variable `" + v.name + "`: expected device " +
                        std::to_string(a.rank) + " to hold " +
                        mesh::TensorType{v.type.dtype, storage}.ToString() +
                        ", got: " + local.type().ToString());
      }
      local = local.Slice(mesh::Dims(storage.size(), 0), a.slice.sizes);
    }
    out[a.variable].blocks.push_back({a.slice.offsets, std::move(local)});
  }
  return out;
}

}  // namespace meshtrain::checkpoint
