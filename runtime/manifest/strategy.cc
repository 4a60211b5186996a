// Strategies as presets: each that is synchronous is a mesh of one axis, `batch`, over the devices
// it is given. What a strategy cannot act on is refused here.
#include <algorithm>

#include "runtime/base/text.h"
#include "runtime/manifest/manifest.h"
#include "runtime/mesh/tpu_slice.h"

namespace meshtrain::manifest {
namespace {

const std::vector<std::string>& Strategies() {
  static const std::vector<std::string> kNames = {"Mesh",
                                                  "Default",
                                                  "OneDevice",
                                                  "Mirrored",
                                                  "CentralStorage",
                                                  "MultiWorkerMirrored",
                                                  "ParameterServer",
                                                  "TPU"};
  return kNames;
}

// Beside parameter servers each worker computes a step by itself, and servers hold the variables.
void CheckWithServers(Problems& problems, const Program& program) {
  const auto refuse = [&](std::string_view field, const std::string& what) {
    problems.Add(program.PlaceOf(field), program.path + "." + std::string(field), what);
  };
  // Workers read the data themselves, and are sent its name and files.
  const std::pair<const Choice*, std::string_view> sources[] = {
      {&program.data.train.from, "data.train."},
      {program.data.test ? &program.data.test->from : nullptr, "data.test."}};
  for (const auto& [from, prefix] : sources) {
    const std::vector<std::string> known = {"idx", "npy", "image_folder"};
    if (from == nullptr || from->kind.empty() ||
        std::find(known.begin(), known.end(), from->kind) != known.end()) {
      continue;
    }
    refuse(std::string(prefix) + from->kind,
           "expected one of " + Join(known, ", ") +
               " under ParameterServer, whose workers open the data by themselves, got: " +
               from->kind);
  }
  if (program.strict) {
    refuse("numerics",
           "expected fast under ParameterServer, where steps end in any order, got: strict");
  }
  if (program.train.reduce_dtype != kFullPrecision) {
    refuse("train.reduce_dtype",
           "expected f32 under ParameterServer, whose workers push gradients of f32, got: " +
               program.train.reduce_dtype);
  }
  if (program.layout.automatic) {
    refuse("layout",
           "expected no layout under ParameterServer, where servers hold whole variables "
           "or their parts (parameter_server.variable_partitioner), got: auto");
  }
  if (program.layout.update != UpdateSharing::kAuto) {
    refuse("layout.update",
           "expected auto under ParameterServer, where servers do the update, got: " +
               std::string(program.layout.update == UpdateSharing::kShared ? "shared" : "copied"));
  }
}

// What shares work among devices needs several.
void CheckOnOneDevice(Problems& problems, const Program& program) {
  if (program.layout.automatic) {
    problems.Add(program.PlaceOf("layout"), program.path + ".layout",
                 "auto needs a mesh of several devices, got: one device");
  }
  if (program.train.reduce_dtype != kFullPrecision) {
    problems.Add(program.PlaceOf("train.reduce_dtype"), program.path + ".train.reduce_dtype",
                 program.train.reduce_dtype + " needs a mesh of several devices, got: one device");
  }
  if (program.layout.update == UpdateSharing::kShared) {
    problems.Add(program.PlaceOf("layout.update"), program.path + ".layout.update",
                 "shared needs a mesh of several devices, got: one device");
  }
}

// `numerics: strict` is a promise about devices of one process that share memory.
void CheckStrict(Problems& problems, const Program& program, int64_t processes) {
  if (!program.strict) return;
  if (program.mirrored && program.mirrored->isolated()) {
    problems.Add(program.PlaceOf("mirrored"), program.path + ".mirrored",
                 "numerics: strict holds where the devices share memory: expected "
                 "cross_device_ops: Auto and no packing");
  } else if (processes > 1) {
    problems.Add(program.PlaceOf("numerics"), program.path + ".numerics",
                 "strict holds where the devices share memory: expected fast between processes, "
                 "got: strict in " +
                     std::to_string(processes) + " processes");
  } else if (program.devices.kind_given.value_or(mesh::DeviceKind::kCpu) !=
             mesh::DeviceKind::kCpu) {
    problems.Add(program.PlaceOf("numerics"), program.path + ".numerics",
                 "strict holds where the devices share memory: expected fast on devices of kind " +
                     std::string(mesh::DeviceKindName(*program.devices.kind_given)) +
                     ", got: strict");
  }
}

}  // namespace

void ApplyStrategy(Problems& problems, Place place, const std::string& path,
                   const ReadOptions& options, Manifest* manifest) {
  Program& program = manifest->program;
  const std::string& strategy = manifest->strategy;
  // Then there is no mesh that layouts could be checked against.
  const std::string mesh_path = program.path + ".mesh";
  const auto refuse = [&](const std::string& what) {
    problems.Add({place, path, what, mesh_path});
  };
  const std::vector<std::string>& known = Strategies();
  if (!strategy.empty() && std::find(known.begin(), known.end(), strategy) == known.end()) {
    return refuse("unknown strategy `" + Excerpt(strategy) + "`" + Suggest(strategy, known));
  }
  const auto options_of = [&](bool given, const std::string& key, const std::string& wanted) {
    if (!given || strategy == wanted) return;
    problems.Add(program.PlaceOf(key), program.path + "." + key,
                 "expected the strategy " + wanted +
                     ", got: " + (strategy.empty() ? "none" : Excerpt(strategy)));
  };
  options_of(program.parameter_server.has_value(), "parameter_server", "ParameterServer");
  options_of(program.mirrored.has_value(), "mirrored", "Mirrored");
  options_of(program.multi_worker_mirrored.has_value(), "multi_worker_mirrored",
             "MultiWorkerMirrored");
  if (program.packing().given()) {
    if (program.layout.update == UpdateSharing::kShared) {
      problems.Add(program.PlaceOf("layout"), program.path + ".layout.update",
                   "shared sums each gradient where it is used: expected auto or copied beside "
                   "`packing`, got: shared");
    }
    // What goes in packs is gradients that every device gets whole.
    program.layout.update = UpdateSharing::kCopied;
  }
  const int64_t processes = std::max<int64_t>(1, options.processes);
  CheckStrict(problems, program, processes);
  if (!problems.Clean(mesh_path)) return;
  if (!program.mesh.empty()) {
    if (!strategy.empty() && strategy != "Mesh") {
      refuse("`" + Excerpt(strategy) +
             "` makes its own mesh: expected no program.mesh beside it, or the strategy Mesh");
    }
    return;
  }
  if (strategy == "Mesh") return refuse("the strategy Mesh needs program.mesh, got: none");
  const bool counted = program.devices.count.has_value();
  if (const mesh::TpuSlice* slice = mesh::FindTpuSlice(program.devices.slice);
      slice != nullptr && !counted) {
    program.devices.count = slice->devices;
  }
  // What one process computes on by itself: a ps's worker too.
  if (strategy == "ParameterServer") return CheckWithServers(problems, program);
  const bool many = strategy == "MultiWorkerMirrored" || strategy == "TPU" || strategy.empty();
  if (processes > 1 && !many) {
    return refuse("`" + Excerpt(strategy) + "` trains in one process, got: " +
                  std::to_string(processes) + " (MultiWorkerMirrored takes many)");
  }
  if (strategy == "TPU") {
    const mesh::DeviceKind kind = program.devices.kind_given.value_or(mesh::DeviceKind::kTpu);
    if (kind != mesh::DeviceKind::kTpu && kind != mesh::DeviceKind::kPjrt) {
      return refuse("`TPU` trains on devices of kind tpu, got: devices.kind: " +
                    std::string(mesh::DeviceKindName(kind)));
    }
    program.devices.kind = kind;
  }
  const int64_t devices = program.devices.count.value_or(1);
  if ((strategy == "Default" || strategy == "OneDevice") && devices != 1) {
    return refuse(
        "`" + Excerpt(strategy) + "` trains on one device, got: " +
        (counted ? "devices.count: " + std::to_string(devices)
                 : "devices.slice: " + program.devices.slice + ", of " + std::to_string(devices)));
  }
  // One device and nothing said: the mesh of one device, whose programs hold no collective.
  if (devices * processes == 1) return CheckOnOneDevice(problems, program);
  program.mesh = {{"batch", devices * processes}};
  program.devices.count = devices;
  // The last batch is shared as it is; its examples weigh what they should.
  program.data.uneven = program.data.uneven.value_or(true);
}

}  // namespace meshtrain::manifest
