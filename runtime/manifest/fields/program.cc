// The program's own fields, and all its rows in order.
#include <algorithm>

#include "runtime/base/text.h"
#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/catalogue/own_rows.h"
#include "runtime/manifest/fields/fields.h"
#include "runtime/mesh/tpu_slice.h"

namespace meshtrain::manifest {
namespace {

void ReadMesh(Fields& in, Program& program) {
  const Node* node = in.Get("mesh");
  if (node == nullptr) return;
  const std::string path = in.Path("mesh");
  if (!node->IsMap()) return in.Wrong("mesh", "axes with their sizes, {batch: 8}");
  for (const Node::Member& member : node->members) {
    const auto size = member.value.AsInt();
    constexpr int64_t kMost = 1 << 20;
    if (!size || *size < 1 || *size > kMost) {
      in.problems().Add(member.value.place, path + "." + member.key,
                        "expected a size of at least 1, got: " + member.value.Describe());
      continue;
    }
    program.mesh.push_back({member.key, *size});
  }
  // Names and their number are Mesh's own rule; sizes of 1 leave out what is said about devices.
  std::vector<mesh::Axis> ones = program.mesh;
  for (mesh::Axis& axis : ones) axis.size = 1;
  if (const auto mesh = mesh::Mesh::Create(ones); !mesh.ok()) {
    std::string what = mesh.status().message();
    if (what.starts_with("mesh: ")) what.erase(0, 6);
    in.problems().Add(node->place, path, std::move(what));
  }
}
std::optional<Node> WriteMesh(const Program& program) {
  if (program.mesh.empty()) return std::nullopt;
  Node node = Node::Map();
  for (const mesh::Axis& axis : program.mesh) node.Put(axis.name, field::ToNode(axis.size));
  return node;
}

// The axes as `order` names them, each once.
void ReadMeshOrder(Fields& in, Program& program) {
  const Node* node = in.Get("mesh_order");
  if (node == nullptr) return;
  const std::vector<std::string> order = in.Texts("mesh_order");
  if (!in.problems().Clean(in.Path("mesh")) || !in.problems().Clean(in.Path("mesh_order"))) return;
  std::vector<mesh::Axis>& axes = program.mesh;
  std::vector<mesh::Axis> ordered;
  for (const std::string& name : order) {
    const auto named = [&](const mesh::Axis& a) { return a.name == name; };
    const auto axis = std::find_if(axes.begin(), axes.end(), named);
    const bool again = std::any_of(ordered.begin(), ordered.end(), named);
    if (axis != axes.end() && !again) ordered.push_back(*axis);
  }
  if (ordered.size() != axes.size() || order.size() != axes.size()) {
    std::vector<std::string> names;
    for (const mesh::Axis& axis : axes) names.push_back(axis.name);
    in.problems().Add(in.PlaceOf("mesh_order"), in.Path("mesh_order"),
                      "expected each axis of `mesh` once (" + Join(names, ", ") +
                          "), got: " + Excerpt(Join(order, ", ")));
    return;
  }
  axes = std::move(ordered);
}
// Where a map that is sorted would lose the order.
std::optional<Node> WriteMeshOrder(const Program& program) {
  std::vector<std::string> names;
  for (const mesh::Axis& axis : program.mesh) names.push_back(axis.name);
  if (std::is_sorted(names.begin(), names.end())) return std::nullopt;
  return field::ToNode(names);
}

std::vector<std::string> SlicesOfOneHost() {
  std::vector<std::string> names;
  for (const mesh::TpuSlice& slice : mesh::TpuSlices()) {
    if (slice.hosts() == 1) names.emplace_back(slice.name);
  }
  return names;
}

std::vector<Field> DeviceFields() {
  Field kind = field::Own<Devices>(
      "kind", "",
      [](Fields& in, Devices& devices) {
        if (in.Get("kind") == nullptr) return;
        devices.kind = field::ReadWord(in, "kind", mesh::DeviceKindNames(), mesh::DeviceKind::kCpu);
        devices.kind_given = devices.kind;
      },
      [](const Devices& devices) -> std::optional<Node> {
        if (!devices.kind_given) return std::nullopt;
        return Node::Word(mesh::DeviceKindName(*devices.kind_given));
      },
      {.about = "What computes: cpu; discrete, the processor with memory for each device that no "
                "other can touch; pjrt, the devices of the plugin that MESHTRAIN_PJRT_PLUGIN "
                "names; or tpu or cuda, the same where they must be TPUs, or NVIDIA's GPUs.",
       .fallback = "cpu; tpu under the strategy TPU",
       .sample = "discrete"});
  kind.type = FieldType::kWord;
  kind.words = mesh::DeviceKindNames();
  return {kind,
          field::Int("count", &Devices::count, {.least = 1},
                     {.about = "Devices of each process.",
                      .fallback = "the mesh's size over the processes; the slice's",
                      .sample = "3"}),
          field::Word("slice", &Devices::slice, SlicesOfOneHost(),
                      {.about = "The TPU slice of each process: in a cluster its pod asks for the "
                                "chips, and on GKE for such a node. Slices of several hosts are "
                                "not there: a plugin's collectives do not leave their process.",
                       .fallback = "none is asked for",
                       .sample = "v5e-8"})};
}

// Of a model of one output it must be there.
Field LossField() {
  Field loss = field::OneOf("loss", &Program::loss, Losses(),
                            {.about = "What training makes small.",
                             .fallback = "required without `outputs`",
                             .sample = "{sparse_categorical_crossentropy: {reduction: sum}}"});
  loss.read = [read = loss.read](Fields& in, void* out) {
    if (in.Get("outputs") == nullptr) in.Need("loss");
    read(in, out);
  };
  return loss;
}

std::vector<Field> BuiltIn() {
  std::vector<Field> all = {
      field::Int("seed", &Program::seed, {},
                 {.about = "Of initial values without a seed of their own, of dropout and of "
                           "shuffling.",
                  .fallback = "0",
                  .sample = "7"}),
      field::Own<Program>("mesh", "axes with their sizes, {batch: 4, model: 2}", ReadMesh,
                          WriteMesh,
                          {.about = "The mesh's axes in order, slowest first.",
                           .fallback = "the strategy's, else one device",
                           .sample = "{batch: 4}"}),
      field::Own<Program>("mesh_order", "the names of the axes", ReadMeshOrder, WriteMeshOrder,
                          {.about = "The axes' order where it is not the map's. An API server "
                                    "sorts the keys of a map.",
                           .fallback = "the map's",
                           .sample = "[model, batch]",
                           .context = "{mesh: {batch: 2, model: 2}, layout: {rules: [{match: "
                                      "'.*kernel', spec: [unsharded, model]}]}}"}),
      field::Map("devices", &Program::devices, DeviceFields(),
                 {.about = "What computes, and how many.", .fallback = "as the mesh needs"}),
      field::Required(
          field::Map("data", &Program::data, DataFields(), {.about = "Examples and batches."})),
      ModelField(),
      LossField(),
      field::Required(
          field::OneOf("optimizer", &Program::optimizer, Optimizers(),
                       {.about = "How weights follow their gradients.", .sample = "adam"})),
      MetricsField(),
      OutputsField(),
      LayoutField(),
      field::Map("train", &Program::train, TrainFields(), {.about = "The loop."}),
      GenerateField(),
  };
  for (Field& row : StrategyFields()) all.push_back(std::move(row));
  all.push_back(field::Path(field::Text(
      "initial_weights", &Program::initial_weights,
      {.about = "A safetensors file or a checkpoint, by parameter path; exit code 66 without "
                "it, 65 where it is damaged or of other weights.",
       .fallback = "none",
       .shows = Shows::kWeights,
       .sample = "w.safetensors"})));
  all.push_back(field::Word(
      "numerics", &Program::strict, {"fast", "strict"},
      {.about = "strict: the same bits on any mesh, where one process's devices share memory.",
       .fallback = "fast",
       .shows = Shows::kNumbers,
       .sample = "strict"}));
  all.push_back(field::Word(
      "precision", &Program::precision, {"f32", "bf16", "f16"},
      {.about = "What layers compute in, sums in f32. Weights, normalisation, the loss and the "
                "optimizer stay f32.",
       .fallback = "f32",
       .shows = Shows::kPlan,
       .sample = "bf16"}));
  return all;
}

// A row of this program's own, which reads into options.
Field InProgram(Field field) {
  field.read = [read = field.read](Fields& in, void* out) {
    read(in, &static_cast<Program*>(out)->own);
  };
  field.write = [write = field.write](const void* from) {
    return write(&static_cast<const Program*>(from)->own);
  };
  return field;
}

}  // namespace

std::vector<std::string_view> BuiltInProgramFieldNames() {
  // The first three stand beside a program's fields where a document is a program alone.
  return {"program",
          "strategy",
          "checkpoint",
          "seed",
          "mesh",
          "mesh_order",
          "devices",
          "data",
          "model",
          "loss",
          "optimizer",
          "metrics",
          "outputs",
          "layout",
          "train",
          "generate",
          "parameter_server",
          "mirrored",
          "multi_worker_mirrored",
          "initial_weights",
          "numerics",
          "precision"};
}

const std::vector<Field>& ProgramFields() {
  static const std::vector<Field> kFields = [] {
    std::vector<Field> all = BuiltIn();
    for (const Field& own : AllOwnEntries().fields) all.push_back(InProgram(own));
    return all;
  }();
  return kFields;
}

}  // namespace meshtrain::manifest
