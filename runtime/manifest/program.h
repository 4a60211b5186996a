// The manifest as data: what a text says, in plain values that know no layer, optimizer or device.
// What is chosen from a catalogue (a layer, a loss, a source ...) is its name and the options that
// the text gives; `runtime/recipe` makes the thing itself.
//
// Equality is of what is said, not of where it stood.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/choice/choice.h"
#include "runtime/manifest/node.h"
#include "runtime/mesh/mesh.h"

namespace meshtrain::manifest {

using choice::Choice;
using choice::Options;
using choice::Spot;
using choice::Value;

// --- model

struct Layer {
  std::string kind;  // "dense"
  std::string name;  // Keras' automatic one where the text has none
  Options options;
  std::vector<std::string> inputs;  // of a functional model: "x", or names of layers before it
  Spot spot;
  friend bool operator==(const Layer&, const Layer&) = default;
};

struct Model {
  bool functional = false;  // `layers:` with `inputs:`, not a list
  std::vector<Layer> layers;
  // Of a functional model: the layer that it ends with; "": `outputs` names several.
  std::string output;
  friend bool operator==(const Model&, const Model&) = default;
};

// What the figures of a metric are called: its option `name`, or its own.
inline std::string FigureName(const Choice& metric) {
  return metric.options.Text("name", metric.kind);
}

// What is trained of one of the layers that a functional model ends with.
struct Output {
  std::string layer;         // "": of a model of one output
  std::string labels = "y";  // a component of the data
  Choice loss;
  double weight = 1;  // of the loss in the sum that training makes small
  std::vector<Choice> metrics;
  Spot spot;
  friend bool operator==(const Output&, const Output&) = default;
};

// What a figure of the output is called: "loss", or with its layer's name before it, "digit_loss".
inline std::string FigureName(const Output& output, std::string_view figure) {
  return (output.layer.empty() ? "" : output.layer + "_") + std::string(figure);
}

// --- data

struct Source {
  Choice from;        // idx: {images, labels, labels_as}
  int64_t take = -1;  // -1: all
  friend bool operator==(const Source&, const Source&) = default;
};
struct Shuffle {
  int64_t buffer = 0;
  std::optional<int64_t> seed;  // none: the program's
  bool reshuffle = true;
  friend bool operator==(const Shuffle&, const Shuffle&) = default;
};
struct Data {
  Source train;
  std::optional<Source> test;
  std::vector<Choice> map;
  std::optional<Shuffle> shuffle;  // of train only
  bool cache = true;
  std::optional<int64_t> repeat;  // -1: for ever; of train only
  int64_t prefetch = -1;          // -1: auto; 0: none
  int64_t batch = 0;              // global
  bool drop_remainder = false;    // of train only
  std::optional<bool> uneven;     // whether the mesh axis need not divide a batch; none: it must
  friend bool operator==(const Data&, const Data&) = default;
};

// --- layout, loop

using LayoutSpecs = std::vector<std::string>;  // an entry per dimension: "unsharded", "model"

struct LayoutRule {
  std::string match;
  LayoutSpecs specs;
  Spot spot;
  friend bool operator==(const LayoutRule&, const LayoutRule&) = default;
};
// How the optimizer's slots lie where the batch is split and the weight is not.
enum class UpdateSharing : uint8_t {
  kAuto,    // split where processes share the mesh, else as the weight
  kShared,  // split: each device updates its part of the weight, then all gather it
  kCopied,  // as the weight: each device does the whole update
};
struct Layout {
  bool automatic = false;  // `layout: auto`: cost decides
  UpdateSharing update = UpdateSharing::kAuto;
  std::vector<LayoutRule> rules;
  std::map<std::string, LayoutSpecs> inputs;  // by input name, x or y
  friend bool operator==(const Layout&, const Layout&) = default;
};

struct EarlyStopping {
  std::string monitor = "val_loss";
  int64_t patience = 0;
  double min_delta = 0;
  // The model that the run leaves is that of the best epoch, whose checkpoint is kept.
  bool restore_best_weights = false;
  friend bool operator==(const EarlyStopping&, const EarlyStopping&) = default;
};
struct Train {
  int64_t epochs = 1;
  int64_t steps_per_epoch = -1;   // -1: a pass of the data
  int64_t validation_steps = -1;  // -1: a pass
  int64_t validate_every = 1;     // epochs; 0: never
  // Steps in a row whose loss or a gradient is not finite, with which the job fails.
  int64_t end_after_bad_steps = 1;
  int64_t accumulate = 1;            // parts that each batch is computed in
  double loss_scale = 1;             // what the loss is multiplied with on the way back
  std::string reduce_dtype = "f32";  // what devices add up their parts of gradients in
  // Rules by layer path: what is computed again on the way back, not kept.
  std::vector<std::string> recompute;
  std::optional<EarlyStopping> early_stopping;
  friend bool operator==(const Train&, const Train&) = default;
};

// Text that the trained model writes at the end of the run, character by character.
struct Generate {
  std::string prompt;           // what it goes on from
  int64_t length = 200;         // characters that it writes
  double temperature = 0;       // 0: always the likeliest character
  std::optional<int64_t> seed;  // of what is drawn; none: the program's
  friend bool operator==(const Generate&, const Generate&) = default;
};

// --- devices and strategies

struct Devices {
  std::optional<mesh::DeviceKind> kind_given;  // none: the strategy may choose, else cpu
  std::optional<int64_t> count;  // per process; none: the mesh's size over the processes
  std::string slice;             // of TPUs, a name of mesh::TpuSlices(); "": not said
  mesh::DeviceKind kind = mesh::DeviceKind::kCpu;
  friend bool operator==(const Devices&, const Devices&) = default;
};

// Of the strategy ParameterServer.
struct ParameterServer {
  // How variables are cut, of Partitioners(): TensorFlow's, by their names and arguments. None:
  // each is whole on one server.
  std::optional<Choice> partitioner;
  int64_t staleness_bound = -1;            // -1: none
  std::optional<int64_t> steps_in_flight;  // of the whole job; none: one for each worker
  friend bool operator==(const ParameterServer&, const ParameterServer&) = default;
};

// How gradients go together on their way between devices: in so many packs of about the same size
// (0: each gradient alone), or in packs of so many bytes.
struct Packing {
  std::optional<int64_t> num_packs;
  std::optional<int64_t> bytes_per_pack;
  bool given() const { return num_packs || bytes_per_pack; }
  friend bool operator==(const Packing&, const Packing&) = default;
};

// Of the strategy Mirrored.
const std::vector<std::string>& CrossDeviceOpsNames();  // tf.distribute's CrossDeviceOps
struct Mirrored {
  std::string cross_device_ops = "Auto";  // one of CrossDeviceOpsNames()
  Packing packing;
  // Devices share memory, where nothing has to be summed between them, unless the sums were
  // described. NCCL without GPUs describes none.
  bool isolated() const {
    return packing.given() || (cross_device_ops != "Auto" && cross_device_ops != "NCCL");
  }
  friend bool operator==(const Mirrored&, const Mirrored&) = default;
};
// Of the strategy MultiWorkerMirrored.
struct MultiWorkerMirrored {
  // AUTO, RING or NCCL: tf.distribute's CommunicationImplementation.
  std::string communication = "AUTO";
  Packing packing;
  friend bool operator==(const MultiWorkerMirrored&, const MultiWorkerMirrored&) = default;
};

// --- all of it

// Layers compute in their inputs' type; with another of Program::precision, in that.
inline constexpr std::string_view kFullPrecision = "f32";

struct Program {
  std::string file;              // where it was read from, and
  std::string path = "program";  // what its fields are under, for errors
  int64_t seed = 0;
  std::vector<mesh::Axis> mesh;  // empty: one device
  Devices devices;
  int64_t processes = 1;  // that share the mesh, process-major
  Data data;
  Model model;
  Choice loss;  // of a model of one output, as `metrics`
  Choice optimizer;
  std::vector<Choice> metrics;
  std::vector<Output> outputs;  // of a model of several; Outputs() has what is trained of any model
  Layout layout;
  Train train;
  std::optional<Generate> generate;
  std::optional<ParameterServer> parameter_server;
  std::optional<Mirrored> mirrored;
  std::optional<MultiWorkerMirrored> multi_worker_mirrored;
  std::string initial_weights;                          // "": none
  bool strict = false;                                  // `numerics: strict`
  std::string precision = std::string(kFullPrecision);  // what layers compute in
  Options own;  // of the fields that this program has added (catalogue/own_rows.h)

  // Of each field that the text gives, by its path below the program ("data.batch").
  std::map<std::string, Place> places;

  friend bool operator==(const Program&, const Program&);

  // The strategy's; nothing given where the text sets none.
  Packing packing() const;
  // Of a field; {} where the text does not give it.
  Place PlaceOf(std::string_view field) const;
  // "FILE:LINE:COLUMN: PATH" of a field, for Status::At.
  std::string Where(std::string_view field) const;
};

struct Checkpoint {
  std::string path;         // "": none
  int64_t every_steps = 0;  // 0: after each epoch, and every ten minutes
  int64_t keep = 3;
  bool resume = true;  // `resume: Latest`; `Never` begins anew
  friend bool operator==(const Checkpoint&, const Checkpoint&) = default;
};

// What the worker and the command line need of a TrainingJob; operator/api has all of it.
struct Manifest {
  std::string name;  // metadata.name; "" for a program alone
  std::string name_space;
  Program program;
  Checkpoint checkpoint;
  std::string strategy;  // "" when the text has none; what it means is in `program`
  std::map<std::string, int64_t> replicas;  // by role, as written ("worker" -> 3)
};

}  // namespace meshtrain::manifest
