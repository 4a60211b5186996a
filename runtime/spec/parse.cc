// The program as a whole, and the manifest around it.
#include "runtime/spec/parse.h"

#include <algorithm>

#include "runtime/base/text.h"

namespace meshtrain::spec {
namespace {

std::vector<mesh::Axis> ParseMesh(Problems& problems, const Node& node, const std::string& path) {
  std::vector<mesh::Axis> axes;
  if (!node.IsMap()) {
    problems.Add(node.place, path,
                 "expected axes with their sizes, {batch: 8}, got: " + node.Describe());
    return axes;
  }
  for (const Node::Member& member : node.members) {
    const auto size = member.value.AsInt();
    constexpr int64_t kMost = 1 << 20;
    if (!size || *size < 1 || *size > kMost) {
      problems.Add(member.value.place, path + "." + member.key,
                   "expected a size of at least 1, got: " + member.value.Describe());
      continue;
    }
    axes.push_back({member.key, *size});
  }
  // Names and their number are Mesh's own rule; sizes of 1 leave out what CheckProgram says about
  // devices.
  std::vector<mesh::Axis> ones = axes;
  for (mesh::Axis& axis : ones) axis.size = 1;
  if (const auto mesh = mesh::Mesh::Create(ones); !mesh.ok()) {
    std::string what = mesh.status().message();
    if (what.starts_with("mesh: ")) what.erase(0, 6);
    problems.Add(node.place, path, std::move(what));
  }
  return axes;
}

// The axes as `order` names them: each once. (A Kubernetes API server gives the keys of a map back
// sorted.)
void OrderAxes(Problems& problems, Place place, const std::string& path,
               const std::vector<std::string>& order, std::vector<mesh::Axis>* axes) {
  std::vector<mesh::Axis> ordered;
  for (const std::string& name : order) {
    const auto axis = std::find_if(axes->begin(), axes->end(),
                                   [&](const mesh::Axis& a) { return a.name == name; });
    const bool again = std::any_of(ordered.begin(), ordered.end(),
                                   [&](const mesh::Axis& a) { return a.name == name; });
    if (axis != axes->end() && !again) ordered.push_back(*axis);
  }
  if (ordered.size() != axes->size() || order.size() != axes->size()) {
    std::vector<std::string> names;
    for (const mesh::Axis& axis : *axes) names.push_back(axis.name);
    problems.Add(place, path,
                 "expected each axis of `mesh` once (" + Join(names, ", ") +
                     "), got: " + Excerpt(Join(order, ", ")));
    return;
  }
  *axes = std::move(ordered);
}

DevicesSpec ParseDevices(Problems& problems, const Node& node, const std::string& path) {
  static const std::vector<std::string> kKinds = {"cpu", "cuda", "tpu", "pjrt"};
  DevicesSpec devices;
  Fields fields(problems, node, path);
  devices.kind_given = fields.Get("kind") != nullptr;
  const std::string kind = fields.Choice("kind", kKinds, "cpu");
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (kKinds[i] == kind) devices.kind = static_cast<mesh::DeviceKind>(i);
  }
  if (fields.Get("count") != nullptr) devices.count = fields.Int("count", 1, 1);
  return devices;
}

LayoutSpec ParseLayoutSpec(Problems& problems, const Node& node, const std::string& path) {
  LayoutSpec layout;
  if (node.IsScalar() && node.scalar == "auto") {
    layout.automatic = true;
    return layout;
  }
  if (node.IsScalar()) {
    problems.Add(node.place, path, "expected auto, or a map with rules, got: " + node.Describe());
    return layout;
  }
  Fields fields(problems, node, path);
  static const std::vector<std::string> kUpdates = {"auto", "shared", "copied"};  // UpdateSharing
  const auto update =
      std::find(kUpdates.begin(), kUpdates.end(), fields.Choice("update", kUpdates, "auto"));
  layout.update = static_cast<UpdateSharing>(update - kUpdates.begin());
  if (const Node* rules = fields.Get("rules")) {
    if (!rules->IsList()) fields.Wrong("rules", "a list");
    for (size_t i = 0; i < rules->list.size(); ++i) {
      Fields f(problems, rules->list[i], path + ".rules[" + std::to_string(i) + "]");
      LayoutRule rule{.place = rules->list[i].place};
      rule.match = f.NeedText("match");
      f.Need("spec");
      rule.specs = f.Texts("spec");
      layout.rules.push_back(std::move(rule));
    }
  }
  if (const Node* inputs = fields.Get("inputs")) {
    Fields f(problems, *inputs, fields.Path("inputs"), "input");
    for (const std::string_view name : {train::kInputName, train::kLabelName}) {
      if (f.Get(name) != nullptr) layout.inputs[std::string(name)] = f.Texts(name);
    }
  }
  return layout;
}

TrainSpec ParseTrain(Problems& problems, const Node& node, const std::string& path) {
  TrainSpec train;
  Fields fields(problems, node, path);
  train.epochs = fields.Int("epochs", 1, 1);
  train.steps_per_epoch = fields.Int("steps_per_epoch", -1, 1);
  train.end_after_bad_steps = fields.Int("end_after_bad_steps", 1, 1);
  if (const Node* validation = fields.Get("validation")) {
    if (const auto flag = validation->AsBool()) {
      train.validate_every = *flag ? 1 : 0;
    } else {
      Fields f(problems, *validation, fields.Path("validation"));
      train.validate_every = f.Int("every_epochs", 1, 1);
      train.validation_steps = f.Int("steps", -1, 1);
    }
  }
  if (const Node* stopping = fields.Get("early_stopping")) {
    Fields f(problems, *stopping, fields.Path("early_stopping"));
    EarlyStoppingSpec spec;
    spec.monitor = f.Text("monitor", spec.monitor);
    spec.patience = f.Int("patience", 0, 0);
    spec.min_delta = f.Number("min_delta", 0);
    spec.restore_best_weights = f.Bool("restore_best_weights", false);
    train.early_stopping = spec;
  }
  return train;
}

std::vector<train::Metric> ParseMetrics(Problems& problems, const Node& node,
                                        const std::string& path) {
  std::vector<train::Metric> metrics;
  if (!node.IsList()) {
    problems.Add(node.place, path, "expected a list, got: " + node.Describe());
    return metrics;
  }
  for (size_t i = 0; i < node.list.size(); ++i) {
    const Node& entry = node.list[i];
    const std::string at = path + "[" + std::to_string(i) + "]";
    if (!entry.IsScalar()) {
      problems.Add(entry.place, at, "expected a metric's name, got: " + entry.Describe());
    } else if (!train::ParseMetric(entry.scalar)) {
      problems.Add(entry.place, at,
                   "unknown metric `" + Excerpt(entry.scalar) + "`" +
                       Suggest(entry.scalar, train::MetricNames()));
    } else if (std::any_of(metrics.begin(), metrics.end(),
                           [&](const auto& m) { return m.name == entry.scalar; })) {
      problems.Add(entry.place, at, "metric `" + Excerpt(entry.scalar) + "` is here twice");
    } else {
      metrics.push_back(train::MetricOf(entry.scalar));
    }
  }
  return metrics;
}

ProgramSpec ReadProgram(Problems& problems, const Node& node, const std::string& path) {
  ProgramSpec spec;
  spec.file = problems.file();
  spec.path = path;
  Fields fields(problems, node, path);
  spec.seed = fields.Int("seed", 0);
  if (const Node* mesh = fields.Get("mesh")) {
    spec.mesh = ParseMesh(problems, *mesh, fields.Path("mesh"));
  }
  if (fields.Get("mesh_order") != nullptr) {
    OrderAxes(problems, fields.PlaceOf("mesh_order"), fields.Path("mesh_order"),
              fields.Texts("mesh_order"), &spec.mesh);
  }
  if (const Node* devices = fields.Get("devices")) {
    spec.devices = ParseDevices(problems, *devices, fields.Path("devices"));
  }
  if (const Node* data = fields.Need("data")) {
    spec.data = ParseData(problems, *data, fields.Path("data"), spec.seed);
  }
  if (const Node* model = fields.Need("model")) {
    spec.model = ParseModel(problems, *model, fields.Path("model"));
  }
  if (const Node* loss = fields.Need("loss")) {
    spec.loss = ParseLossSpec(problems, *loss, fields.Path("loss"));
  }
  if (const Node* optimizer = fields.Need("optimizer")) {
    spec.optimizer = ParseOptimizer(problems, *optimizer, fields.Path("optimizer"));
  }
  if (const Node* metrics = fields.Get("metrics")) {
    spec.metrics = ParseMetrics(problems, *metrics, fields.Path("metrics"));
  }
  if (const Node* layout = fields.Get("layout")) {
    spec.layout = ParseLayoutSpec(problems, *layout, fields.Path("layout"));
  }
  if (const Node* train = fields.Get("train")) {
    spec.train = ParseTrain(problems, *train, fields.Path("train"));
    for (const char* key : {"validation", "early_stopping", "end_after_bad_steps"}) {
      if (const Node* part = train->Find(key)) {
        spec.places["train." + std::string(key)] = part->place;
      }
    }
  }
  if (const Node* servers = fields.Get("parameter_server")) {
    spec.parameter_server =
        ParseParameterServer(problems, *servers, fields.Path("parameter_server"));
  }
  if (const Node* mirrored = fields.Get("mirrored")) {
    spec.mirrored = ParseMirrored(problems, *mirrored, fields.Path("mirrored"));
  }
  if (const Node* many = fields.Get("multi_worker_mirrored")) {
    spec.multi_worker_mirrored =
        ParseMultiWorkerMirrored(problems, *many, fields.Path("multi_worker_mirrored"));
  }
  spec.initial_weights = fields.Text("initial_weights");
  const std::vector<std::string> numerics = {"fast", "strict"};
  spec.strict = fields.Choice("numerics", numerics, "fast") == "strict";
  for (const std::string_view key : {"mesh", "devices", "data", "model", "loss", "layout", "train",
                                     "parameter_server", "mirrored", "multi_worker_mirrored"}) {
    spec.places[std::string(key)] = fields.PlaceOf(key);
  }
  if (const Node* data = fields.Get("data")) {
    const Node* batch = data->Find("batch");
    spec.places["data.batch"] = batch != nullptr ? batch->place : data->place;
    if (const Node* test = data->Find("test")) spec.places["data.test"] = test->place;
  }
  if (spec.data.repeat == -1 && spec.train.steps_per_epoch < 0) {
    problems.Add(fields.PlaceOf("train"), fields.Path("train"),
                 "data.repeat is for ever, so `steps_per_epoch` must say where an epoch ends");
  }
  return spec;
}

CheckpointSpec ParseCheckpoint(Problems& problems, const Node& node, const std::string& path) {
  CheckpointSpec checkpoint;
  Fields fields(problems, node, path);
  checkpoint.path = fields.Text("path");
  checkpoint.every_steps = fields.Int("everySteps", 0, 0);
  checkpoint.keep = fields.Int("keep", checkpoint.keep, 1);
  const std::vector<std::string> resume = {"Latest", "Never"};
  checkpoint.resume = fields.Choice("resume", resume, "Latest") == "Latest";
  fields.AllowOthers();  // volumeClaimTemplate is the operator's
  return checkpoint;
}

}  // namespace

Result<ProgramSpec> ParseProgramSpec(const Node& node, std::string_view file, std::string_view path,
                                     const ReadOptions& options) {
  Problems problems(file);
  ProgramSpec spec = ReadProgram(problems, node, std::string(path));
  // What the fields say together is told only once each of them can be trusted.
  if (problems.empty()) CheckProgram(problems, spec, options);
  MT_RETURN_IF_ERROR(problems.ToStatus());
  return spec;
}

Result<Manifest> ParseManifest(std::string_view text, std::string_view file,
                               const ReadOptions& options) {
  MT_ASSIGN_OR_RETURN(const std::vector<Node> documents, ParseDocuments(text, file));
  const Node* job = nullptr;
  for (const Node& document : documents) {
    const Node* kind = document.Find("kind");
    if (kind == nullptr || kind->scalar != "TrainingJob") continue;
    if (job != nullptr) {
      return InvalidArgument(At(file, document.place, "") +
                             "expected one TrainingJob, got: another");
    }
    job = &document;
  }
  Manifest manifest;
  Problems problems(file);
  ReadOptions read = options;
  const Node* program = nullptr;
  Place strategy_place;
  if (job != nullptr) {
    Fields fields(problems, *job, "");
    fields.AllowOthers();
    if (const Node* metadata = fields.Get("metadata")) {
      Fields f(problems, *metadata, "metadata");
      f.AllowOthers();
      manifest.name = f.Text("name");
      manifest.name_space = f.Text("namespace");
    }
    const Node* spec = job->Find("spec");
    if (spec == nullptr || !spec->IsMap()) {
      return InvalidArgument(
          At(file, spec != nullptr ? spec->place : job->place, "spec") +
          "expected a map, got: " + (spec != nullptr ? spec->Describe() : "nothing"));
    }
    Fields f(problems, *spec, "spec");
    f.AllowOthers();
    manifest.strategy = f.Text("strategy");
    strategy_place = f.PlaceOf("strategy");
    if (const Node* checkpoint = f.Get("checkpoint")) {
      manifest.checkpoint = ParseCheckpoint(problems, *checkpoint, "spec.checkpoint");
    }
    if (const Node* roles = f.Get("replicaSpecs"); roles != nullptr && roles->IsMap()) {
      for (const Node::Member& role : roles->members) {
        Fields r(problems, role.value, "spec.replicaSpecs." + role.key);
        r.AllowOthers();
        manifest.replicas[role.key] = r.Int("replicas", 1, 0);
      }
      int64_t in_mesh = 0;
      for (const auto& [role, count] : manifest.replicas) {
        // As the operator reads roles: in any case, and TFJob's older word for the chief.
        if (const std::string lower = ToLower(role);
            lower == "chief" || lower == "master" || lower == "worker") {
          in_mesh += count;
        }
      }
      if (options.processes == 1 && in_mesh > 0) read.processes = in_mesh;
    }
    program = f.Get("program");
    if (program == nullptr) {
      return NotFound(At(file, spec->place, "spec") +
                      "`program` is missing: this job runs an image of its own");
    }
  } else {
    if (documents.size() != 1 || !documents[0].IsMap()) {
      return InvalidArgument(At(file, documents.empty() ? Place{} : documents[0].place, "") +
                             "expected a TrainingJob or a program, got: " +
                             (documents.empty() ? "an empty text" : documents[0].Describe()));
    }
    if (const Node* kind = documents[0].Find("kind"); kind != nullptr) {
      return InvalidArgument(At(file, kind->place, "kind") +
                             "expected TrainingJob, got: " + kind->Describe());
    }
    program = documents[0].members.size() == 1 ? documents[0].Find("program") : nullptr;
    if (program == nullptr) program = &documents[0];
  }
  manifest.program = ReadProgram(problems, *program, "program");
  // Beside parameter servers every process computes by itself.
  if (manifest.strategy == "ParameterServer") read.processes = 1;
  if (problems.empty()) ApplyStrategy(problems, strategy_place, read, &manifest);
  manifest.program.processes = read.processes;
  if (problems.empty()) CheckProgram(problems, manifest.program, read);
  MT_RETURN_IF_ERROR(problems.ToStatus());
  return manifest;
}

}  // namespace meshtrain::spec
