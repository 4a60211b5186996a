// `outputs`: of a model of several outputs, what is trained of each.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/text.h"
#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/fields/fields.h"
#include "runtime/manifest/manifest.h"

namespace meshtrain::manifest {
namespace {

const std::vector<Field>& OutputFields() {
  static const std::vector<Field> kFields = {
      field::Required(field::Text("layer", &Output::layer,
                                  {.about = "The layer of the graph that gives it, whose name its "
                                            "figures have before theirs: logits_loss.",
                                   .sample = "flat",
                                   .context = kOutputsContext})),
      field::Text(
          "labels", &Output::labels,
          {.about = "The component of the data that its loss and metrics compare with.",
           .fallback = "y",
           .sample = "other",
           .context = "{data: {train: {npy: {images: a.npy, labels: b.npy, more: {other: o.npy}}}, "
                      "test: {npy: {images: c.npy, labels: d.npy, more: {other: p.npy}}}}, "
                      "loss: null, metrics: null, model: {layers: [flatten: {name: flat, inputs: "
                      "x}, dense: {name: logits, units: 4}]}, outputs: [{layer: logits, loss: "
                      "sparse_categorical_crossentropy}]}"}),
      field::Required(
          field::OneOf("loss", &Output::loss, Losses(),
                       {.about = "What training makes small of it.",
                        .sample = "{sparse_categorical_crossentropy: {from_logits: true}}",
                        .context = kOutputsContext})),
      field::Number("weight", &Output::weight, {.least = 0},
                    {.about = "The loss counts so many times in the sum that training makes small.",
                     .fallback = "1",
                     .sample = "0.5",
                     .context = kOutputsContext}),
      MetricsOfOutput()};
  return kFields;
}

// What one output says beside the model, the data and the outputs before it.
void CheckOutput(Problems& problems, const Program& program, const Output& output) {
  const auto wrong = [&](std::string_view field, const std::string& what) {
    problems.Add(output.spot.place, output.spot.path + "." + std::string(field), what);
  };
  if (problems.Clean(output.spot.path + ".layer") && problems.Clean(program.path + ".model")) {
    std::vector<std::string> layers;
    for (const Layer& layer : program.model.layers) {
      if (IsPlainName(layer.name)) layers.push_back(layer.name);
    }
    if (!program.model.functional) {
      wrong("layer", "expected a model that is a graph, `layers:` with `inputs:`, got: a list");
    } else if (!IsFigureName(FigureName(output, "loss"))) {
      wrong("layer",
            "expected a layer whose name is of small letters, digits and _, with no val_ "
            "or test_ before them (its figures are called after it), got: " +
                Excerpt(output.layer));
    } else if (std::find(layers.begin(), layers.end(), output.layer) == layers.end()) {
      wrong("layer", "no layer of the model is named `" + Excerpt(output.layer) + "`" +
                         Suggest(output.layer, layers));
    }
  }
  const std::vector<std::string> components = Components(program);
  if (problems.Clean(output.spot.path + ".labels") &&
      problems.Clean(program.path + ".data.train") &&
      std::find(components.begin(), components.end(), output.labels) == components.end()) {
    wrong("labels", "no component of the data is named `" + Excerpt(output.labels) + "`" +
                        Suggest(output.labels, components));
  }
}

// Figures of all outputs that have one name: of a layer twice, or of `a` and `a_loss`.
void CheckFigures(Problems& problems, const std::vector<Output>& outputs) {
  std::set<std::string> names = {"loss"};
  for (const Output& output : outputs) {
    std::vector<std::string> figures = {FigureName(output, "loss")};
    for (const Choice& metric : output.metrics) {
      figures.push_back(FigureName(output, FigureName(metric)));
    }
    std::set<std::string> own;
    for (const std::string& figure : figures) {
      if (!own.insert(figure).second || names.insert(figure).second) continue;
      problems.Add(output.spot.place, output.spot.path + ".layer",
                   "expected outputs whose figures have names of their own, got: `" +
                       Excerpt(figure) + "` twice");
      return;
    }
  }
}

void ReadOutputs(Fields& in, Program& program) {
  const Node* node = in.Get("outputs");
  if (node == nullptr) return;
  for (const std::string_view other : {"loss", "metrics"}) {
    if (in.Get(other) == nullptr) continue;
    in.problems().Add(in.PlaceOf(other), in.Path(other),
                      "expected none beside `outputs`, each of which has its own");
  }
  if (!node->IsList() || node->list.empty()) return in.Wrong("outputs", "a list of outputs");
  for (size_t i = 0; i < node->list.size(); ++i) {
    Output output;
    output.spot = {node->list[i].place, in.Path("outputs") + "[" + std::to_string(i) + "]"};
    ReadFields(in.problems(), node->list[i], output.spot.path, OutputFields(), &output);
    CheckOutput(in.problems(), program, output);
    program.outputs.push_back(std::move(output));
  }
  if (in.problems().Clean(in.Path("outputs"))) CheckFigures(in.problems(), program.outputs);
}

std::optional<Node> WriteOutputs(const Program& program) {
  if (program.outputs.empty()) return std::nullopt;
  std::vector<Node> items;
  for (const Output& output : program.outputs) {
    items.push_back(WriteFields(OutputFields(), &output));
  }
  return Node::List(std::move(items));
}

}  // namespace

Field OutputsField() {
  Field outputs = field::Own<Program>(
      "outputs", "", ReadOutputs, WriteOutputs,
      {.about = "Of a graph that ends with several layers: what is trained of each, in the place "
                "of `loss`, `metrics` and the model's `output`.",
       .fallback = "the model has one output",
       .sample = "[{layer: logits, loss: sparse_categorical_crossentropy}]",
       .context = kOutputsContext},
      OutputFields());
  outputs.type = FieldType::kMaps;
  return outputs;
}

}  // namespace meshtrain::manifest
