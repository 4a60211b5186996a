// What can be said about a program before there is any data.
#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/text.h"
#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/fields/fields.h"
#include "runtime/manifest/manifest.h"
#include "runtime/mesh/layout.h"
#include "runtime/mesh/tpu_slice.h"

namespace meshtrain::manifest {
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

// "./a//b" and "a/b" are one file.
std::string PlainPath(const std::string& path) {
  std::vector<std::string> steps = Split(path, '/');
  std::erase_if(steps, [](const std::string& step) { return step.empty() || step == "."; });
  return (path.starts_with('/') ? "/" : "") + Join(steps, "/");
}

// What a source is of a text.
struct TextPart {
  std::string file;
  double split = 0;
  std::string subset;
  std::string ToString() const {
    if (split == 0) return "all of it";
    return "the subset " + subset + " of validation_split " + Node::Number(split).scalar;
  }
};

TextPart TextPartOf(const Choice& source) {
  return {.file = PlainPath(source.options.Text("file")),
          .split = source.options.Number("validation_split", 0),
          .subset = source.options.Text("subset", "training")};
}

class Checker {
 public:
  Checker(Problems& problems, const Program& program, const ReadOptions& options)
      : problems_(problems), program_(program), options_(options) {
    // For names alone, sizes do not matter, and a huge mesh would cost memory.
    std::vector<mesh::Axis> ones = program.mesh;
    for (mesh::Axis& axis : ones) axis.size = 1;
    if (auto names = mesh::Mesh::Create(ones); !ones.empty() && names.ok()) {
      names_ = std::move(*names);
    }
  }

  void Run() {
    if (Clean({"mesh", "devices"})) Devices();
    Kind();
    // Without its axes a mesh says nothing of layouts.
    const bool axes = Clean({"mesh"});
    if (axes) Layouts();
    if (axes && Clean({"layout", "model"})) UnusedAxes();
    if (Clean({"data.batch", "train.accumulate"})) Parts();
    if (axes && Clean({"layout.inputs", "data.batch", "data.uneven", "train.accumulate"})) {
      BatchDivides();
    }
    if (Clean({"precision", "train.reduce_dtype"})) Sums();
    if (Clean({"data.repeat", "train"})) Epochs();
    if (Clean({"data.train", "data.test"})) SameComponents();
    if (Clean({"data.train", "data.test"})) Texts();
    if (Clean({"data.test", "train"})) Validation();
    if (Clean({"metrics", "loss", "outputs"})) Classes();
    if (Clean({"metrics", "outputs", "train"})) Stopping();
    if (Clean({"generate", "data.train", "model", "outputs", "train"})) Generation();
  }

 private:
  bool Clean(std::initializer_list<std::string_view> fields) const {
    return std::all_of(fields.begin(), fields.end(),
                       [&](std::string_view field) { return problems_.Clean(Path(field)); });
  }
  Place At(std::string_view key) const { return program_.PlaceOf(key); }
  std::string Path(std::string_view key) const { return program_.path + "." + std::string(key); }
  void Use(const std::string& spec) {
    for (const std::string& axis : Split(spec, '+')) used_.insert(axis);
  }

  static constexpr int64_t kMostDevices = 1 << 20;

  // Of the mesh; more than kMostDevices is no number to go on with, but it does not overflow.
  int64_t MeshSize() const {
    int64_t size = 1;
    for (const mesh::Axis& axis : program_.mesh) {
      size *= axis.size;
      if (size > kMostDevices) break;
    }
    return size;
  }

  void Devices() {
    const int64_t size = MeshSize();
    if (size > kMostDevices) {
      problems_.Add(At("mesh"), Path("mesh"),
                    "expected at most 1048576 devices, got: " + MeshText(program_.mesh));
      return;
    }
    const std::string mesh =
        program_.mesh.empty() ? "the default mesh" : "mesh " + MeshText(program_.mesh);
    const std::string needs = mesh + " needs " + Count(size, "device");
    const int64_t processes = std::max<int64_t>(1, options_.processes);
    if (program_.mesh.empty()) return;  // the strategy makes one
    if (program_.devices.count) {
      if (*program_.devices.count * processes != size) {
        problems_.Add(At("mesh"), Path("mesh"),
                      needs + ", got: " + Count(processes, "process") + " with " +
                          Count(*program_.devices.count, "device") +
                          (processes > 1 ? " each" : ""));
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
  bool Fits(const LayoutSpecs& specs, Place place, const std::string& path) {
    std::vector<std::string> axes;
    for (const mesh::Axis& axis : program_.mesh) axes.push_back(axis.name);
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

  // The layout that a layer gives to one of its weights.
  void WeightLayout(const Layer& layer, const std::string& weight, int rank) {
    std::string option = weight.substr(layer.name.size() + 1) + "_layout";
    std::replace(option.begin(), option.end(), '.', '_');
    const auto specs = layer.options.Texts(option);
    if (!specs) return;
    const std::string path = layer.spot.path + "." + option;
    if (!problems_.Clean(path)) return;
    Fits(*specs, layer.spot.place, path);
    const Status fits = mesh::CheckRank(*specs, weight, rank);
    if (!fits.ok()) problems_.Add(layer.spot.place, path, fits.message());
  }

  void Layouts() {
    for (const auto& [input, specs] : program_.layout.inputs) {
      if (problems_.Clean(Path("layout.inputs." + input))) {
        Fits(specs, At("layout"), Path("layout.inputs." + input));
      }
    }
    for (const Layer& layer : program_.model.layers) {
      for (const auto& [weight, rank] : WeightsOf(layer)) WeightLayout(layer, weight, rank);
    }
    for (const LayoutRule& rule : program_.layout.rules) {
      if (problems_.Clean(rule.spot.path)) Fits(rule.specs, rule.spot.place, rule.spot.path);
    }
  }

  void UnusedAxes() {
    if (program_.layout.automatic) return;
    for (const std::string& input : Components(program_)) {
      for (const std::string& spec : InputSpecs(program_, input, -1)) Use(spec);
    }
    for (const mesh::Axis& axis : program_.mesh) {
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

  void Kind() {
    const mesh::DeviceKind kind = program_.devices.kind;
    if (!Clean({"devices.kind"})) return;
    Slice();
    if (!mesh::IsOfPlugin(kind)) return;
    const std::string name(mesh::DeviceKindName(kind));
    if (!program_.mesh.empty() && options_.processes > 1) {
      problems_.Add(
          At("devices.kind"), Path("devices.kind"),
          "expected cpu or discrete in " + Count(options_.processes, "process") +
              ": collectives of a plugin's devices do not leave their process, got: " + name);
    }
    // Packs are the program's; who adds what first is the plugin's.
    constexpr std::string_view kOps = "mirrored.cross_device_ops";
    if (program_.mirrored && program_.mirrored->cross_device_ops != "Auto" &&
        program_.mirrored->cross_device_ops != "NCCL") {
      problems_.Add(
          At(kOps), Path(kOps),
          "expected Auto on devices of kind " + name +
              ", whose plugin makes their sums, got: " + program_.mirrored->cross_device_ops);
    }
  }

  // Nothing where the mesh, told elsewhere, cannot be shared evenly.
  std::optional<int64_t> DevicesOfProcess() const {
    if (program_.devices.count) return program_.devices.count;
    const int64_t processes = std::max<int64_t>(1, options_.processes);
    const int64_t size = MeshSize();
    if (size % processes != 0) return std::nullopt;
    return size / processes;
  }

  void Slice() {
    const manifest::Devices& devices = program_.devices;
    if (devices.slice.empty() || !Clean({"devices.slice", "devices.count", "mesh"})) return;
    const auto wrong = [&](const std::string& what) {
      problems_.Add(At("devices.slice"), Path("devices.slice"), what);
    };
    if (devices.kind != mesh::DeviceKind::kTpu) {
      return wrong("expected devices of kind tpu beside a slice, got: " +
                   std::string(mesh::DeviceKindName(devices.kind)));
    }
    const mesh::TpuSlice* slice = mesh::FindTpuSlice(devices.slice);
    if (slice == nullptr) return;  // the row's own mistake
    const std::optional<int64_t> used = DevicesOfProcess();
    if (!used || *used == slice->devices) return;
    wrong("expected a slice of the " + Count(*used, "device") +
          " that a process uses, got: " + devices.slice + " of " + std::to_string(slice->devices));
  }

  void Epochs() {
    if (program_.data.repeat != -1 || program_.train.steps_per_epoch >= 0) return;
    problems_.Add(At("train"), Path("train"),
                  "data.repeat is for ever, so `steps_per_epoch` must say where an epoch ends");
  }

  // What is evaluated has the components that are trained on.
  void SameComponents() {
    if (!program_.data.test) return;
    const std::vector<std::string> trained = Components(program_);
    const std::vector<std::string> tested = Components(program_.data.test->from);
    if (trained == tested) return;
    problems_.Add(At("data.test"), Path("data.test"),
                  "expected the components of data.train, " + Join(trained, ", ") +
                      ", got: " + Join(tested, ", "));
  }

  // Of two texts a number is the same character; of one text that is cut, what is evaluated is not
  // what is trained on.
  void Texts() {
    const Choice& train = program_.data.train.from;
    if (train.kind != "text" || !program_.data.test || program_.data.test->from.kind != "text") {
      return;
    }
    const Choice& test = program_.data.test->from;
    Alphabets(train.options.Text("alphabet"), test.options.Text("alphabet"));
    const TextPart trained = TextPartOf(train), tested = TextPartOf(test);
    if (trained.file != tested.file || (trained.split == 0 && tested.split == 0)) return;
    // Where the first windows alone are taken, the text's length says whether they overlap.
    if (program_.data.train.take > 0) return;
    if (trained.split == tested.split && trained.subset != tested.subset) return;
    problems_.Add(At("data.test.text"), Path("data.test.text"),
                  "expected the part of this file that data.train leaves, of the same "
                  "validation_split, got: " +
                      tested.ToString() + " (data.train: " + trained.ToString() + ")");
  }

  void Alphabets(const std::string& trained, const std::string& tested) {
    if (trained == tested) return;
    constexpr std::string_view kAlphabet = "data.test.text.alphabet";
    const auto said = [](const std::string& characters) {
      return characters.empty() ? "none" : "`" + Excerpt(characters) + "`";
    };
    std::string expected = "that of data.train, " + said(trained), got = said(tested);
    if (!trained.empty() && !tested.empty()) {
      const size_t number =
          std::mismatch(trained.begin(), trained.end(), tested.begin(), tested.end()).first -
          trained.begin();
      const auto character = [&](const std::string& of) {
        return said(number < of.size() ? of.substr(number, 1) : "");
      };
      expected = "that of data.train, of which number " + std::to_string(number) + " is " +
                 character(trained);
      got = character(tested);
    }
    problems_.Add(At(kAlphabet), Path(kAlphabet), "expected " + expected + ", got: " + got);
  }

  void Validation() {
    const Train& train = program_.train;
    if (program_.places.contains("train.validation") && train.validate_every > 0 &&
        !program_.data.test) {
      problems_.Add(At("train.validation"), Path("train.validation"),
                    "expected data.test to validate on, got: none");
    }
    if (program_.places.contains("train.validation.every_epochs") &&
        train.validate_every > train.epochs) {
      problems_.Add(At("train.validation.every_epochs"), Path("train.validation.every_epochs"),
                    "expected at most train.epochs, " + std::to_string(train.epochs) +
                        ", or nothing is validated, got: " + std::to_string(train.validate_every));
    }
    if (program_.parameter_server && train.end_after_bad_steps != 1) {
      problems_.Add(At("train.end_after_bad_steps"), Path("train.end_after_bad_steps"),
                    "expected 1 under ParameterServer, where a bad step ends the job, got: " +
                        std::to_string(train.end_after_bad_steps));
    }
  }

  // A metric of two kinds of examples needs a class that is one of them.
  void Classes() {
    for (const Output& output : Outputs(program_)) {
      const Entry* loss = Losses().Find(output.loss.kind);
      if (loss == nullptr || !loss->one_of_classes) continue;
      for (const Choice& metric : output.metrics) {
        const Entry* entry = Metrics().Find(metric.kind);
        const bool takes_class =
            entry != nullptr &&
            std::any_of(entry->options.begin(), entry->options.end(),
                        [](const Field& option) { return option.name == "class"; });
        if (!takes_class || metric.options.MaybeInt("class")) continue;
        problems_.Add(metric.spot.place, metric.spot.path + ".class",
                      "expected the number of the class that is looked for, with " +
                          output.loss.kind + ", got: none");
      }
    }
  }

  // What is asked of an epoch's figures must be among them.
  void Stopping() {
    const Train& train = program_.train;
    if (!train.early_stopping) return;
    const std::string path = Path("train.early_stopping.monitor");
    const std::string& monitor = train.early_stopping->monitor;
    std::vector<std::string> names = {"loss"};
    for (const Output& output : Outputs(program_)) {
      if (!output.layer.empty()) names.push_back(FigureName(output, "loss"));
      for (const Choice& metric : output.metrics) {
        names.push_back(FigureName(output, FigureName(metric)));
      }
    }
    for (size_t i = 0, n = names.size(); i < n; ++i) names.push_back("val_" + names[i]);
    if (std::find(names.begin(), names.end(), monitor) == names.end()) {
      problems_.Add(At("train.early_stopping"), path,
                    "unknown figure `" + Excerpt(monitor) + "`" + Suggest(monitor, names));
    } else if (monitor.starts_with("val_") && !(program_.data.test && train.validate_every > 0)) {
      problems_.Add(At("train.early_stopping"), path,
                    "`" + Excerpt(monitor) + "` needs data.test and a validation, got: none");
    }
  }

  // A text is written character by character, each of those before it.
  void Generation() {
    if (!program_.generate) return;
    const Generate& generate = *program_.generate;
    if (!program_.outputs.empty()) {
      problems_.Add(At("generate"), Path("generate"),
                    "expected a model of one output, which writes the text, got: `outputs`");
    }
    if (const auto numbers = CharacterNumbers(program_, generate.prompt); !numbers.ok()) {
      const bool text = program_.data.train.from.kind == "text";
      const std::string_view field = text ? "generate.prompt" : "generate";
      problems_.Add(At(field), Path(field), numbers.status().message());
    }
    for (const Layer& layer : program_.model.layers) {
      if (layer.kind != "multi_head_attention" || layer.options.Bool("use_causal_mask", false)) {
        continue;
      }
      problems_.Add(At("generate"), Path("generate"),
                    "expected attention that looks back alone, got: " + layer.name +
                        " without use_causal_mask");
      break;
    }
    if (program_.train.early_stopping && program_.train.early_stopping->restore_best_weights) {
      problems_.Add(At("generate"), Path("generate"),
                    "expected a run that leaves its last weights, which it writes with, got: "
                    "train.early_stopping.restore_best_weights (`meshtrain generate` writes with "
                    "the model that a run left)");
    }
  }

  void Parts() {
    const int64_t parts = program_.train.accumulate;
    if (parts <= program_.data.batch) return;
    problems_.Add(At("train.accumulate"), Path("train.accumulate"),
                  "expected at most data.batch, " + std::to_string(program_.data.batch) +
                      ", parts of at least one example, got: " + std::to_string(parts));
  }

  void Sums() {
    const std::string& dtype = program_.train.reduce_dtype;
    if (dtype == kFullPrecision || dtype == program_.precision) return;
    const bool full = program_.precision == kFullPrecision;
    problems_.Add(
        At("train.reduce_dtype"), Path("train.reduce_dtype"),
        full ? "expected f32, in which the model computes (precision), got: " + dtype
             : "expected f32 or program.precision's " + program_.precision + ", got: " + dtype);
  }

  void BatchDivides() {
    if (program_.data.uneven.value_or(false)) return;
    const LayoutSpecs specs = InputSpecs(program_, Components(program_).front(), -1);
    if (specs.empty()) return;
    int64_t shards = 1;
    for (const std::string& axis : Split(specs[0], '+')) {
      for (const mesh::Axis& known : program_.mesh) {
        if (known.name == axis) shards *= known.size;
      }
    }
    const int64_t batch = program_.data.batch, parts = program_.train.accumulate;
    const std::string axis = std::to_string(shards) + ", the size of axis `" + specs[0] +
                             "` (or data.uneven: true), got: ";
    if (batch % shards != 0) {
      problems_.Add(At("data.batch"), Path("data.batch"),
                    "expected a multiple of " + axis + std::to_string(batch));
    } else if (shards > 1 && parts <= batch && batch % (shards * parts) != 0) {
      problems_.Add(At("train.accumulate"), Path("train.accumulate"),
                    "expected parts of data.batch, " + std::to_string(batch) +
                        ", each of a multiple of " + axis + Count(parts, "part"));
    }
  }

  Problems& problems_;
  const Program& program_;
  const ReadOptions& options_;
  mesh::Mesh names_;
  std::set<std::string> used_;
};

}  // namespace

void CheckProgram(Problems& problems, const Program& program, const ReadOptions& options) {
  Checker(problems, program, options).Run();
}

}  // namespace meshtrain::manifest
