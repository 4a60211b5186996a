// The manifest's `program`: a model, its data and its training, declared. Plain values; reading a
// text, checking what can be checked without data, and tracing it into programs.
//
//   program:
//     mesh: {batch: 8}
//     data: {train: {idx: {images: a.gz, labels: b.gz}}, batch: 128}
//     model: [flatten, dense: {units: 10}]
//     loss: {sparse_categorical_crossentropy: {from_logits: true}}
//     optimizer: adam
//
// Every error says "FILE:LINE:COLUMN: PATH: what", with the nearest name that would have been
// right; all that are found come at once, a line each. Pure: reads no file. docs/reference and the
// CRD's schema describe the same fields.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/spec.h"
#include "runtime/mesh/mesh.h"
#include "runtime/nn/model.h"
#include "runtime/spec/document.h"
#include "runtime/train/loss.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/packing.h"
#include "runtime/train/programs.h"

namespace meshtrain::spec {

// --- model: what each entry says. Names are set (Keras' automatic ones where the text has none).

struct DenseSpec {
  int64_t units = 0;
  nn::DenseOptions options;
};
struct FlattenSpec {};
struct ReshapeSpec {
  mesh::Dims dims;  // without the batch
};
struct ActivationSpec {
  nn::ActivationKind activation = nn::ActivationKind::kLinear;
};
struct DropoutSpec {
  double rate = 0;
  std::optional<int64_t> seed;
};
struct AddSpec {};
struct ConcatenateSpec {
  int64_t axis = -1;
};
using LayerOptions = std::variant<DenseSpec, FlattenSpec, ReshapeSpec, ActivationSpec, DropoutSpec,
                                  AddSpec, ConcatenateSpec>;

struct LayerSpec {
  std::string kind;  // "dense"
  std::string name;
  LayerOptions options;
  std::vector<std::string> inputs;  // of a functional model: "x", or names of layers before it
  Place place;
  std::string path;  // "program.model[1].dense"
};

struct ModelSpec {
  bool functional = false;  // `layers:` with `inputs:`, not a list
  std::vector<LayerSpec> layers;
  std::string output;  // of a functional model: the layer that it ends with
};

// --- data

struct DataSpec {
  data::SourceSpec train;
  std::optional<data::SourceSpec> test;
  std::vector<data::MapOp> map;
  std::optional<data::ShuffleStage> shuffle;  // of train only
  bool cache = true;
  std::optional<int64_t> repeat;  // -1: for ever; of train only
  int64_t prefetch = -1;          // -1: auto; 0: none
  int64_t batch = 0;              // global
  bool drop_remainder = false;    // of train only
  bool uneven = false;            // the mesh axis need not divide a batch
};

// map, cache, shuffle, batch, repeat, prefetch: the order does not depend on the text's.
data::PipelineSpec TrainPipeline(const DataSpec& data);
// map, cache, batch, prefetch. `data.test` must be there.
data::PipelineSpec TestPipeline(const DataSpec& data);

// --- loss, optimizer, layout, loop

using OptimizerOptions =
    std::variant<train::AdamOptions, train::AdamPaperOptions, train::SgdOptions,
                 train::RmspropOptions, train::AdagradOptions, train::AdamLikeOptions,
                 train::FtrlOptions, train::LionOptions>;
struct OptimizerSpec {
  std::string kind;  // "adam"; says which of the optimizers that share a struct is meant
  OptimizerOptions options;
};

struct LayoutRule {
  std::string match;
  nn::LayoutSpecs specs;
  Place place;
};
// How the optimizer's slots lie where the batch is split and the weight is not.
enum class UpdateSharing : uint8_t {
  kAuto,    // split where processes share the mesh, else as the weight
  kShared,  // split: each device updates its part of the weight, then all gather it
  kCopied,  // as the weight: each device does the whole update
};
struct LayoutSpec {
  bool automatic = false;  // `layout: auto`: cost decides
  UpdateSharing update = UpdateSharing::kAuto;
  std::vector<LayoutRule> rules;
  std::map<std::string, nn::LayoutSpecs> inputs;  // by input name, x or y
};

struct EarlyStoppingSpec {
  std::string monitor = "val_loss";
  int64_t patience = 0;
  double min_delta = 0;
  // The model that the run leaves is that of the best epoch, whose checkpoint is kept.
  bool restore_best_weights = false;
};
struct TrainSpec {
  int64_t epochs = 1;
  int64_t steps_per_epoch = -1;   // -1: a pass of the data
  int64_t validation_steps = -1;  // -1: a pass
  int64_t validate_every = 1;     // epochs; 0: never
  // Steps in a row whose loss or a gradient is not finite, with which the job fails.
  int64_t end_after_bad_steps = 1;
  std::optional<EarlyStoppingSpec> early_stopping;
};

struct DevicesSpec {
  mesh::DeviceKind kind = mesh::DeviceKind::kCpu;
  bool kind_given = false;       // by the text; else the strategy may choose
  std::optional<int64_t> count;  // per process; none: the mesh's size over the processes
};

// How the variables of parameter servers are cut: TensorFlow's partitioners, by their names and
// arguments.
struct WholeVariables {};
struct FixedShardsSpec {
  int64_t num_shards = 1;
};
struct MinSizeSpec {
  int64_t min_shard_bytes = int64_t{256} << 10;
  int64_t max_shards = 1;
};
struct MaxSizeSpec {
  int64_t max_shard_bytes = 0;
  int64_t max_shards = 0;  // 0: any number
};
// Of the strategy ParameterServer.
struct ParameterServerSpec {
  std::variant<WholeVariables, FixedShardsSpec, MinSizeSpec, MaxSizeSpec> partitioner;
  int64_t staleness_bound = -1;            // -1: none
  std::optional<int64_t> steps_in_flight;  // of the whole job; none: one for each worker
};

// How gradients go together, of strategies that sum them.
using PackingSpec = train::Packing;

// Of the strategy Mirrored: tf.distribute's CrossDeviceOps, by their names.
enum class CrossDeviceOps : uint8_t {
  kAuto,
  kNccl,
  kHierarchicalCopy,
  kReductionToOneDevice,
  kRing
};
struct MirroredSpec {
  CrossDeviceOps cross_device_ops = CrossDeviceOps::kAuto;
  PackingSpec packing;
  // Devices share memory, where nothing has to be summed between them, unless the sums were
  // described. NCCL without GPUs describes none.
  bool isolated() const {
    return packing.given() ||
           (cross_device_ops != CrossDeviceOps::kAuto && cross_device_ops != CrossDeviceOps::kNccl);
  }
};
// Of the strategy MultiWorkerMirrored: tf.distribute's CommunicationImplementation.
enum class Communication : uint8_t { kAuto, kRing, kNccl };
struct MultiWorkerMirroredSpec {
  Communication communication = Communication::kAuto;
  PackingSpec packing;
};

struct ProgramSpec {
  std::string file;              // where it was read from, and
  std::string path = "program";  // what its fields are under, for errors
  int64_t seed = 0;
  std::vector<mesh::Axis> mesh;  // empty: one device
  DevicesSpec devices;
  int64_t processes = 1;  // that share the mesh, process-major
  DataSpec data;
  ModelSpec model;
  train::Loss loss;
  OptimizerSpec optimizer;
  std::vector<train::Metric> metrics;
  LayoutSpec layout;
  TrainSpec train;
  std::optional<ParameterServerSpec> parameter_server;
  std::optional<MirroredSpec> mirrored;
  std::optional<MultiWorkerMirroredSpec> multi_worker_mirrored;
  // Of the strategy; nothing said: nothing.
  PackingSpec packing() const;
  std::string initial_weights;  // "": none
  bool strict = false;          // `numerics: strict`

  std::map<std::string, Place>
      places;  // of "mesh", "model", "data.batch", for errors that come when it is traced
};

// --- reading

struct CheckpointSpec {
  std::string path;         // "": none
  int64_t every_steps = 0;  // 0: after each epoch, and every ten minutes
  int64_t keep = 3;
  bool resume = true;  // `resume: Latest`; `Never` begins anew
};

// What the worker and the command line need of a TrainingJob; operator/api has all of it.
struct Manifest {
  std::string name;  // metadata.name; "" for a program alone
  std::string name_space;
  ProgramSpec program;
  CheckpointSpec checkpoint;
  std::string strategy;  // "" when the text has none; what it means is in `program`
  std::map<std::string, int64_t> replicas;  // by role, as written ("worker" -> 3)
};

struct ReadOptions {
  int64_t processes = 1;  // in the mesh; devices.count times this must be its size
  std::optional<int64_t>
      max_devices;  // a mesh that needs more (per process) is refused; none: any number
};

// A TrainingJob (its `spec.program`), or a `program` alone: {program: {...}} or its fields at the
// top. YAML or JSON. With several documents, the one TrainingJob among them. Without
// options.processes, chief and workers are counted. Errors: kInvalidArgument with every mistake,
// kNotFound for a TrainingJob without a program.
Result<Manifest> ParseManifest(std::string_view text, std::string_view file,
                               const ReadOptions& options = {});
// `node` is the program itself; `path` is what errors call it ("spec.program"). For operator/api.
Result<ProgramSpec> ParseProgramSpec(const Node& node, std::string_view file, std::string_view path,
                                     const ReadOptions& options = {});

// --- tracing

// Layouts by name, for sharding::Given. Kept true: every input and every state is there.
struct Layouts {
  std::map<std::string, mesh::Layout> inputs;
  std::map<std::string, mesh::Layout> states;
};

struct Traced {
  train::Programs programs;
  mesh::Mesh mesh;
  Layouts layouts;
};
// Bytes of a pack of a traced program's gradients; nothing: as the plan has it.
inline std::optional<int64_t> BytesPerPack(const PackingSpec& packing, const Traced& traced) {
  return train::BytesPerPack(packing, traced.programs);
}

// The batches of one source: the types of a full one's components, and the sizes that there are.
struct Batches {
  std::vector<mesh::TensorType> types;
  std::set<int64_t> sizes;
};

// A declared program made ready to be traced, for any number of batch sizes over the same
// variables. Used, with its copies, by one thread at a time.
class Declared {
 public:
  // Errors: kInvalidArgument.
  static Result<Declared> Create(const ProgramSpec& spec);
  // `types`: of one batch's components, x and y; `source`: what errors call the batch's data, "":
  // nothing. Errors: kInvalidArgument with the place in the manifest: a layer that does not fit its
  // input, a rule that does not fit its weight, labels that do not fit the loss, a batch that the
  // axis does not divide.
  Result<Traced> Trace(const std::vector<mesh::TensorType>& types,
                       std::string_view source = "") const;
  // Whether the program takes every batch of its data, the short last ones too. Errors: Trace's;
  // kInvalidArgument where the test data's batches are of other types than the training data's.
  Status CheckBatches(const Batches& train, const std::optional<Batches>& test) const;
  const train::Recipe& recipe() const { return recipe_; }
  const mesh::Mesh& mesh() const { return mesh_; }

 private:
  // `layout: auto`: of the weights and their slots, for batches of the manifest's size whatever
  // `types` have, so that all batches find the same.
  Result<std::map<std::string, mesh::Layout>> ChooseLayouts(std::vector<mesh::TensorType> types,
                                                            const Layouts& given) const;
  // What it found last, for which types: each batch size asks again. Of all copies.
  struct Chosen {
    std::vector<mesh::TensorType> types;
    std::map<std::string, mesh::Layout> states;
  };

  ProgramSpec spec_;
  mesh::Mesh mesh_;
  train::Recipe recipe_;
  std::vector<nn::LayerPtr> layers_;  // in the order of spec_.model.layers
  std::shared_ptr<Chosen> chosen_ = std::make_shared<Chosen>();
};

// Create and Trace, for one batch size.
Result<Traced> Build(const ProgramSpec& spec, const std::vector<mesh::TensorType>& types);

}  // namespace meshtrain::spec
