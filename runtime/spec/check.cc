// What can be said about a program before there is any data.
#include <algorithm>
#include <set>

#include "runtime/base/text.h"
#include "runtime/mesh/layout.h"
#include "runtime/spec/parse.h"

namespace meshtrain::spec {
namespace {

std::string MeshText(const std::vector<mesh::Axis>& axes) {
  std::vector<std::string> parts;
  for (const mesh::Axis& axis : axes) parts.push_back(axis.name + "=" + std::to_string(axis.size));
  return Join(parts, ",");
}

std::string Count(int64_t n, std::string_view one) {
  return std::to_string(n) + " " + std::string(one) +
         (n == 1              ? ""
          : one.back() == 's' ? "es"
                              : "s");
}

class Checker {
 public:
  Checker(Problems& problems, const ProgramSpec& spec, const ReadOptions& options)
      : problems_(problems), spec_(spec), options_(options) {
    // For names alone, sizes do not matter, and a huge mesh would cost memory.
    std::vector<mesh::Axis> ones = spec.mesh;
    for (mesh::Axis& axis : ones) axis.size = 1;
    if (!ones.empty()) names_ = *mesh::Mesh::Create(ones);
  }

  void Run() {
    Devices();
    Layouts();
    Rules();
    for (const std::string_view input : {train::kInputName, train::kLabelName}) {
      for (const std::string& spec : InputSpecs(spec_, std::string(input), -1)) Use(spec);
    }
    UnusedAxes();
    BatchDivides();
    Validation();
  }

 private:
  Place At(const std::string& key) const {
    const auto place = spec_.places.find(key);
    return place == spec_.places.end() ? Place{} : place->second;
  }
  std::string Path(std::string_view key) const { return spec_.path + "." + std::string(key); }
  void Use(const std::string& spec) {
    for (const std::string& axis : Split(spec, '+')) used_.insert(axis);
  }

  void Devices() {
    int64_t size = 1;
    for (const mesh::Axis& axis : spec_.mesh) {
      size *= axis.size;
      if (size > (1 << 20)) {
        problems_.Add(At("mesh"), Path("mesh"),
                      "expected at most 1048576 devices, got: " + MeshText(spec_.mesh));
        return;
      }
    }
    const std::string mesh =
        spec_.mesh.empty() ? "the default mesh" : "mesh " + MeshText(spec_.mesh);
    const std::string needs = mesh + " needs " + Count(size, "device");
    const int64_t processes = std::max<int64_t>(1, options_.processes);
    if (spec_.mesh.empty()) return;  // the strategy makes one
    if (spec_.devices.count) {
      if (*spec_.devices.count * processes != size) {
        problems_.Add(At("mesh"), Path("mesh"),
                      needs + ", got: " + Count(processes, "process") + " with " +
                          Count(*spec_.devices.count, "device") + (processes > 1 ? " each" : ""));
      }
    } else if (size % processes != 0) {
      problems_.Add(At("mesh"), Path("mesh"),
                    needs + ", which " + Count(processes, "process") + " cannot share evenly");
    }
    const int64_t each = (size + processes - 1) / processes;
    if (options_.max_devices && each > *options_.max_devices) {
      problems_.Add(At("mesh"), Path("mesh"),
                    needs +
                        (processes > 1 ? ", " + std::to_string(each) + " in each process" : "") +
                        ", got: " + std::to_string(*options_.max_devices));
    }
  }

  // Axes of specs must be axes of the mesh, each used once.
  bool Fits(const nn::LayoutSpecs& specs, Place place, const std::string& path) {
    std::vector<std::string> axes;
    for (const mesh::Axis& axis : spec_.mesh) axes.push_back(axis.name);
    for (const std::string& spec : specs) {
      Use(spec);
      for (const std::string& axis : Split(spec, '+')) {
        if (axis.empty() || axis == "*" || axis == mesh::UNSHARDED || names_.FindAxis(axis)) {
          continue;
        }
        problems_.Add(place, path,
                      axes.empty()
                          ? "axis `" + Excerpt(axis) + "` needs a mesh, got: a program without one"
                          : "unknown mesh axis `" + Excerpt(axis) + "`" + Suggest(axis, axes));
        return false;
      }
    }
    const auto layout = mesh::Layout::FromSpecs(specs, names_);
    if (!layout.ok()) problems_.Add(place, path, layout.status().message());
    return layout.ok();
  }

  void Layouts() {
    for (const auto& [input, specs] : spec_.layout.inputs) {
      Fits(specs, At("layout"), Path("layout.inputs." + input));
    }
    for (const LayerSpec& layer : spec_.model.layers) {
      const auto* dense = std::get_if<DenseSpec>(&layer.options);
      if (dense == nullptr) continue;
      const auto check = [&](const std::optional<nn::LayoutSpecs>& specs, const char* option,
                             const char* weight, int rank) {
        if (!specs) return;
        const std::string path = layer.path + "." + option;
        Fits(*specs, layer.place, path);
        const Status fits = nn::CheckRank(*specs, layer.name + "." + weight, rank);
        if (!fits.ok()) problems_.Add(layer.place, path, fits.message());
      };
      check(dense->options.kernel_layout, "kernel_layout", "kernel", 2);
      check(dense->options.bias_layout, "bias_layout", "bias", 1);
    }
  }

  void Rules() {
    std::vector<std::string> paths;
    std::vector<WeightShape> weights;
    for (const LayerSpec& layer : spec_.model.layers) {
      for (WeightShape& weight : WeightsOf(layer)) {
        paths.push_back(weight.path);
        weights.push_back(std::move(weight));
      }
    }
    nn::LayoutMap map;
    std::vector<size_t> index;  // of the rule behind each of the map's
    const auto path = [&](size_t rule) {
      return Path("layout.rules[" + std::to_string(rule) + "]");
    };
    for (size_t i = 0; i < spec_.layout.rules.size(); ++i) {
      const LayoutRule& rule = spec_.layout.rules[i];
      Fits(rule.specs, rule.place, path(i));
      if (const Status added = map.Add(rule.match, rule.specs); !added.ok()) {
        problems_.Add(rule.place, path(i), added.message());
      } else {
        index.push_back(i);
      }
    }
    std::set<size_t> told;
    for (const WeightShape& weight : weights) {
      const auto rule = map.Find(weight.path);
      if (!rule || told.contains(*rule)) continue;
      const Status fits = nn::CheckRank(map.specs(*rule), weight.path, weight.rank);
      if (fits.ok()) continue;
      told.insert(*rule);
      problems_.Add(spec_.layout.rules[index[*rule]].place, path(index[*rule]), fits.message());
    }
    for (size_t i = 0; i < map.size(); ++i) {
      const Status used = map.CheckUsed(i, paths);
      if (!used.ok()) {
        problems_.Add(spec_.layout.rules[index[i]].place, path(index[i]), used.message());
      }
    }
  }

  void UnusedAxes() {
    if (spec_.layout.automatic) return;
    for (const mesh::Axis& axis : spec_.mesh) {
      if (axis.size == 1 || used_.contains(axis.name)) continue;
      std::string hint;
      if (!names_.FindAxis("batch")) {
        hint = " (inputs are split over an axis named `batch`, or as layout.inputs says)";
      }
      problems_.Add(At("mesh"), Path("mesh"),
                    "axis `" + axis.name + "` of size " + std::to_string(axis.size) +
                        " splits nothing: no layout rule and no input uses it" + hint);
    }
  }

  // What is asked of an epoch's figures must be among them.
  void Validation() {
    const TrainSpec& train = spec_.train;
    const bool validates = spec_.data.test && train.validate_every > 0;
    if (spec_.places.contains("train.validation") && train.validate_every > 0 && !spec_.data.test) {
      problems_.Add(At("train.validation"), Path("train.validation"),
                    "expected data.test to validate on, got: none");
    }
    if (spec_.parameter_server && train.end_after_bad_steps != 1) {
      problems_.Add(At("train.end_after_bad_steps"), Path("train.end_after_bad_steps"),
                    "expected 1 under ParameterServer, where a bad step ends the job, got: " +
                        std::to_string(train.end_after_bad_steps));
    }
    if (!train.early_stopping) return;
    const std::string path = Path("train.early_stopping.monitor");
    const std::string& monitor = train.early_stopping->monitor;
    std::vector<std::string> names = {std::string(train::kLossName)};
    for (const train::Metric& metric : spec_.metrics) names.push_back(metric.name);
    for (size_t i = 0, n = names.size(); i < n; ++i) names.push_back("val_" + names[i]);
    if (std::find(names.begin(), names.end(), monitor) == names.end()) {
      problems_.Add(At("train.early_stopping"), path,
                    "unknown figure `" + Excerpt(monitor) + "`" + Suggest(monitor, names));
    } else if (monitor.starts_with("val_") && !validates) {
      problems_.Add(At("train.early_stopping"), path,
                    "`" + Excerpt(monitor) + "` needs data.test and a validation, got: none");
    }
  }

  void BatchDivides() {
    if (spec_.data.uneven) return;
    const nn::LayoutSpecs specs = InputSpecs(spec_, std::string(train::kInputName), -1);
    if (specs.empty()) return;
    int64_t shards = 1;
    for (const std::string& axis : Split(specs[0], '+')) {
      for (const mesh::Axis& known : spec_.mesh) {
        if (known.name == axis) shards *= known.size;
      }
    }
    if (spec_.data.batch % shards == 0) return;
    problems_.Add(At("data.batch"), Path("data.batch"),
                  "expected a multiple of " + std::to_string(shards) + ", the size of axis `" +
                      specs[0] +
                      "` (or data.uneven: true), got: " + std::to_string(spec_.data.batch));
  }

  Problems& problems_;
  const ProgramSpec& spec_;
  const ReadOptions& options_;
  mesh::Mesh names_;
  std::set<std::string> used_;
};

}  // namespace

nn::LayoutSpecs InputSpecs(const ProgramSpec& spec, const std::string& input, int rank) {
  const auto given = spec.layout.inputs.find(input);
  if (given != spec.layout.inputs.end()) return given->second;
  nn::LayoutSpecs specs(rank < 0 ? 1 : static_cast<size_t>(rank), std::string(mesh::UNSHARDED));
  const bool has_batch = std::any_of(spec.mesh.begin(), spec.mesh.end(),
                                     [](const mesh::Axis& a) { return a.name == "batch"; });
  if (has_batch && !specs.empty()) specs[0] = "batch";
  return specs;
}

void CheckProgram(Problems& problems, const ProgramSpec& spec, const ReadOptions& options) {
  Checker(problems, spec, options).Run();
}

}  // namespace meshtrain::spec
