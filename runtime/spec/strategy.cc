// Strategies as presets: each that is synchronous is a mesh of one axis, `batch`, over the devices
// it is given. And what the one that is not takes beside it.
#include <algorithm>
#include <array>

#include "runtime/base/text.h"
#include "runtime/spec/parse.h"

namespace meshtrain::spec {
namespace {

constexpr std::array<std::string_view, 8> kStrategies = {"Mesh",
                                                         "Default",
                                                         "OneDevice",
                                                         "Mirrored",
                                                         "CentralStorage",
                                                         "MultiWorkerMirrored",
                                                         "ParameterServer",
                                                         "TPU"};

// The field `packing` of a strategy's options.
PackingSpec ParsePacking(Problems& problems, Fields& options) {
  PackingSpec packing;
  const Node* const node = options.Get("packing");
  if (node == nullptr) return packing;
  const std::string path = options.Path("packing");
  Fields fields(problems, *node, path);
  const bool packs = fields.Get("num_packs") != nullptr,
             bytes = fields.Get("bytes_per_pack") != nullptr;
  if (packs) packing.num_packs = fields.Int("num_packs", 0, 0);
  if (bytes) packing.bytes_per_pack = fields.Int("bytes_per_pack", 1, 1);
  if (node->IsMap() && packs == bytes) {
    problems.Add(
        node->place, path,
        std::string("expected num_packs or bytes_per_pack, got: ") + (packs ? "both" : "neither"));
  }
  return packing;
}

// The place of `name` among `names`, which are those of an enum in its order.
template <typename Enum>
Enum ChoiceOf(Fields& fields, std::string_view key, const std::vector<std::string>& names) {
  const auto at = std::find(names.begin(), names.end(), fields.Choice(key, names, names[0]));
  return static_cast<Enum>(at - names.begin());
}

}  // namespace

PackingSpec ProgramSpec::packing() const {
  if (mirrored) return mirrored->packing;
  return multi_worker_mirrored ? multi_worker_mirrored->packing : PackingSpec{};
}

MirroredSpec ParseMirrored(Problems& problems, const Node& node, const std::string& path) {
  MirroredSpec spec;
  Fields fields(problems, node, path);
  spec.cross_device_ops = ChoiceOf<CrossDeviceOps>(
      fields, "cross_device_ops",
      {"Auto", "NCCL", "HierarchicalCopy", "ReductionToOneDevice", "Ring"});
  spec.packing = ParsePacking(problems, fields);
  return spec;
}

MultiWorkerMirroredSpec ParseMultiWorkerMirrored(Problems& problems, const Node& node,
                                                 const std::string& path) {
  MultiWorkerMirroredSpec spec;
  Fields fields(problems, node, path);
  spec.communication = ChoiceOf<Communication>(fields, "communication", {"AUTO", "RING", "NCCL"});
  spec.packing = ParsePacking(problems, fields);
  return spec;
}

ParameterServerSpec ParseParameterServer(Problems& problems, const Node& node,
                                         const std::string& path) {
  ParameterServerSpec spec;
  Fields fields(problems, node, path);
  if (const Node* value = fields.Get("variable_partitioner")) {
    const std::string at = fields.Path("variable_partitioner");
    if (const auto named = ReadNamed(problems, *value, at, "partitioner")) {
      Fields f(problems, named->options, at + "." + named->name, "option");
      if (named->name == "fixed_shards") {
        f.Need("num_shards");
        spec.partitioner = FixedShardsSpec{f.Int("num_shards", 1, 1)};
      } else if (named->name == "min_size") {
        const MinSizeSpec fallback;
        spec.partitioner = MinSizeSpec{f.Int("min_shard_bytes", fallback.min_shard_bytes, 1),
                                       f.Int("max_shards", 1, 1)};
      } else if (named->name == "max_size") {
        f.Need("max_shard_bytes");
        spec.partitioner = MaxSizeSpec{f.Int("max_shard_bytes", 1, 1), f.Int("max_shards", 0, 1)};
      } else {
        const std::vector<std::string> known = {"fixed_shards", "min_size", "max_size"};
        problems.Add(
            named->place, at,
            "unknown partitioner `" + Excerpt(named->name) + "`" + Suggest(named->name, known));
        f.AllowOthers();
      }
    }
  }
  spec.staleness_bound = fields.Int("staleness_bound", -1, 0);
  if (fields.Get("steps_in_flight") != nullptr) {
    spec.steps_in_flight = fields.Int("steps_in_flight", 1, 1);
  }
  return spec;
}

void ApplyStrategy(Problems& problems, Place place, const ReadOptions& options,
                   Manifest* manifest) {
  ProgramSpec& program = manifest->program;
  const std::string& strategy = manifest->strategy;
  const auto refuse = [&](const std::string& what) { problems.Add(place, "spec.strategy", what); };
  if (std::find(kStrategies.begin(), kStrategies.end(), strategy) == kStrategies.end() &&
      !strategy.empty()) {
    const std::vector<std::string> names(kStrategies.begin(), kStrategies.end());
    return refuse("unknown strategy `" + Excerpt(strategy) + "`" + Suggest(strategy, names));
  }
  const auto options_of = [&](bool given, const std::string& key, const std::string& wanted) {
    if (!given || strategy == wanted) return;
    problems.Add(program.places.at(key), "program." + key,
                 "expected the strategy " + wanted +
                     ", got: " + (strategy.empty() ? "none" : Excerpt(strategy)));
  };
  options_of(program.parameter_server.has_value(), "parameter_server", "ParameterServer");
  options_of(program.mirrored.has_value(), "mirrored", "Mirrored");
  options_of(program.multi_worker_mirrored.has_value(), "multi_worker_mirrored",
             "MultiWorkerMirrored");
  if (program.strict && program.mirrored && program.mirrored->isolated()) {
    problems.Add(program.places.at("mirrored"), "program.mirrored",
                 "numerics: strict holds where the devices share memory: expected "
                 "cross_device_ops: Auto and no packing");
  }
  if (program.packing().given()) {
    if (program.layout.update == UpdateSharing::kShared) {
      problems.Add(program.places.at("layout"), "program.layout.update",
                   "shared sums each gradient where it is used: expected auto or copied beside "
                   "`packing`, got: shared");
    }
    // What goes in packs is gradients that every device gets whole.
    program.layout.update = UpdateSharing::kCopied;
  }
  const int64_t processes = std::max<int64_t>(1, options.processes);
  if (!program.mesh.empty()) {
    if (!strategy.empty() && strategy != "Mesh") {
      refuse("`" + Excerpt(strategy) +
             "` makes its own mesh: expected no program.mesh beside it, or the strategy Mesh");
    }
    return;
  }
  if (strategy == "Mesh") return refuse("the strategy Mesh needs program.mesh, got: none");
  // What one process computes on by itself: a ps's worker too.
  if (strategy == "ParameterServer") return;
  const bool many = strategy == "MultiWorkerMirrored" || strategy == "TPU" || strategy.empty();
  if (processes > 1 && !many) {
    return refuse("`" + Excerpt(strategy) + "` trains in one process, got: " +
                  std::to_string(processes) + " (MultiWorkerMirrored takes many)");
  }
  if (strategy == "TPU") {
    const mesh::DeviceKind kind =
        program.devices.kind_given ? program.devices.kind : mesh::DeviceKind::kTpu;
    if (kind != mesh::DeviceKind::kTpu && kind != mesh::DeviceKind::kPjrt) {
      return refuse("`TPU` trains on devices of kind tpu, got: devices.kind: " +
                    std::string(mesh::DeviceKindName(kind)));
    }
    program.devices.kind = kind;
  }
  const int64_t devices = program.devices.count.value_or(1);
  if ((strategy == "Default" || strategy == "OneDevice") && devices != 1) {
    return refuse("`" + Excerpt(strategy) +
                  "` trains on one device, got: devices.count: " + std::to_string(devices));
  }
  // One device and nothing said: the mesh of one device, whose programs hold no collective.
  if (devices * processes == 1) return;
  program.mesh = {{"batch", devices * processes}};
  program.devices.count = devices;
  program.data.uneven =
      true;  // the last batch is shared as it is; its examples weigh what they should
}

}  // namespace meshtrain::spec
