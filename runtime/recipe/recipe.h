// From a manifest to what trains: model, optimizer, data and plan. What `meshtrain plan` prints and
// what the worker runs come from here. Pure: reads no file.
//
// The options of a layer, a loss, an optimizer, a source are structs of nn, train and data; a
// manifest has their names and values. Here the two are joined, by a row for each (rows.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/spec.h"
#include "runtime/manifest/manifest.h"
#include "runtime/nn/model.h"
#include "runtime/train/loss.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/packing.h"
#include "runtime/train/prediction.h"
#include "runtime/train/programs.h"

namespace meshtrain::recipe {

// Reads a manifest and checks it as far as it shows without data. Nothing where the text is none.
// All mistakes go to `problems`. Errors: as manifest::Read.
Result<std::optional<manifest::Manifest>> ReadManifest(std::string_view text,
                                                       const manifest::ReadOptions& options,
                                                       manifest::Problems& problems);
// As above. Errors: kInvalidArgument with every mistake too.
Result<manifest::Manifest> ParseManifest(std::string_view text, std::string_view file,
                                         const manifest::ReadOptions& options = {});

// --- data

// map, cache, shuffle, batch, repeat, prefetch: the order does not depend on the text's.
data::PipelineSpec TrainPipeline(const manifest::Program& program);
// map, cache, batch, prefetch. `data.test` must be there.
data::PipelineSpec TestPipeline(const manifest::Program& program);

// The stages of TestPipeline over features that are at hand.
data::PipelineSpec PredictPipeline(const manifest::Program& program, data::MemoryArrays features);
// The same program, the files of whose `data.test` lie in another folder, under their names.
// Errors: kInvalidArgument where there is no `data.test`, or where it names no files.
Status MoveTestData(const std::string& folder, manifest::Program* program);

// --- what is chosen by name: a row of the catalogue, or one that this program has added

nn::LayerPtr MakeLayer(const manifest::Layer& layer);
std::shared_ptr<train::Optimizer> MakeOptimizer(const manifest::Choice& optimizer);
train::Loss LossOf(const manifest::Choice& loss);
train::Metric MetricOf(const manifest::Choice& metric);
data::SourceOptions SourceOf(const manifest::Choice& source);
// Lets the fields that this program has added (rows.h) act on what is to be trained. Errors:
// theirs, with the field's place.
Status ActOwnFields(const manifest::Program& program, train::Recipe* recipe);

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
// The model alone, for one size of batches, and its weights with the manifest's layouts; with
// `layout: auto`, which is chosen for a training step, every device has all of them.
struct TracedPrediction {
  train::Prediction prediction;
  // Of TraceNext the same id by id (train::BuildNextById), where the model's layers can.
  std::optional<train::Prediction> by_id = {};
  std::vector<nn::Parameter> parameters;  // of the whole model, in the order of its calls
  std::map<std::string, mesh::Layout> states;
};
train::Packing PackingOf(const manifest::Program& program);

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
  static Result<Declared> Create(const manifest::Program& program);
  // `types`: of one batch's components, x and y; `source`: what errors call the batch's data, "":
  // nothing. Errors: kInvalidArgument with the place in the manifest: a layer that does not fit its
  // input, a rule that does not fit its weight, labels that do not fit the loss, a batch that the
  // axis does not divide.
  Result<Traced> Trace(const std::vector<mesh::TensorType>& types,
                       std::string_view source = "") const;
  // `x`: of a batch of the features. Errors: kInvalidArgument with the place in the manifest: a
  // layer that does not fit its input, a model of several inputs.
  Result<TracedPrediction> TracePrediction(const mesh::TensorType& x) const;
  // What comes behind an id of a text `x`, [1, T] (train::BuildNext), also id by id. Errors:
  // kInvalidArgument with the place in the manifest: as above; ids, a loss or a number of classes
  // that are not those of data.train's characters.
  Result<TracedPrediction> TraceNext(const mesh::TensorType& x) const;
  // Whether the program takes every batch of its data, the short last ones too; of data that is
  // not known nothing is said. Errors: Trace's; kInvalidArgument where the test data's batches are
  // of other types than the training data's.
  Status CheckBatches(const std::optional<Batches>& train,
                      const std::optional<Batches>& test) const;
  const train::Recipe& recipe() const { return recipe_; }
  const mesh::Mesh& mesh() const { return mesh_; }

 private:
  Result<train::Programs> ProgramsOfPart(std::vector<mesh::TensorType> types) const;
  // The same of the model with few of its alike blocks: none where there are few, or where such a
  // model cannot be.
  std::optional<train::Programs> ProgramsOfFewBlocks(
      const std::vector<mesh::TensorType>& types) const;
  // `layout: auto`: of the weights and their slots, for batches of the manifest's size whatever
  // `types` have, so that all batches find the same.
  Result<std::map<std::string, mesh::Layout>> ChooseLayouts(std::vector<mesh::TensorType> types,
                                                            const Layouts& given) const;
  // A trace's error, with the layer that it began in.
  Status AtLayer(const Status& error) const;
  // The model's one input. Errors: kInvalidArgument where it has several.
  Result<std::string> OneInput() const;
  // With the weights' layouts.
  Result<TracedPrediction> WithLayouts(train::Prediction prediction) const;
  // Of the states that `layouts` does not have yet.
  Status AddStateLayouts(std::span<const nn::Parameter> states,
                         std::map<std::string, mesh::Layout>* layouts) const;
  // What it found last, for which types: each batch size asks again. Of all copies.
  struct Chosen {
    std::vector<mesh::TensorType> types;
    std::map<std::string, mesh::Layout> states;
  };

  manifest::Program program_;
  mesh::Mesh mesh_;
  train::Recipe recipe_;
  std::vector<nn::LayerPtr> layers_;  // in the order of program_.model.layers
  std::shared_ptr<Chosen> chosen_ = std::make_shared<Chosen>();
};

// Create and Trace, for one batch size.
Result<Traced> Build(const manifest::Program& program, const std::vector<mesh::TensorType>& types);

}  // namespace meshtrain::recipe
