#include "runtime/manifest/manifest.h"

#include <algorithm>
#include <array>

#include "runtime/base/text.h"
#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/fields/fields.h"
#include "runtime/mesh/layout.h"

namespace meshtrain::manifest {
namespace {

// The place of every field that a text gives: of a field of the program's own its key's, of those
// below its value's.
void NotePlaces(const Node& node, const std::string& prefix, std::map<std::string, Place>* places) {
  for (const Node::Member& member : node.members) {
    const std::string path = prefix + member.key;
    places->emplace(path, prefix.empty() ? member.place : member.value.place);
    NotePlaces(member.value, path + ".", places);
  }
}

constexpr std::array<std::string_view, 2> kBesideProgram = {"strategy", "checkpoint"};

// Null when absent or null.
const Node* Part(const Node& node, std::string_view key) {
  const Node* found = node.Find(key);
  return found == nullptr || found->IsNull() ? nullptr : found;
}

// As the operator reads roles: in any case, and TFJob's older word for the chief.
bool InMesh(const std::string& role) {
  const std::string lower = ToLower(role);
  return lower == "chief" || lower == "master" || lower == "worker";
}

void ReadMetadata(Problems& problems, const Node& job, Manifest* manifest) {
  const Node* metadata = job.Find("metadata");
  if (metadata == nullptr || metadata->IsNull()) return;
  Fields fields(problems, *metadata, "metadata");
  fields.AllowOthers();
  manifest->name = fields.Text("name");
  manifest->name_space = fields.Text("namespace");
}

// The number of processes in the mesh.
int64_t ReadReplicas(Problems& problems, const Node& spec, Manifest* manifest) {
  const Node* roles = spec.Find("replicaSpecs");
  int64_t in_mesh = 0;
  if (roles == nullptr || !roles->IsMap()) return in_mesh;
  for (const Node::Member& role : roles->members) {
    Fields fields(problems, role.value, "spec.replicaSpecs." + role.key);
    fields.AllowOthers();
    const int64_t count = fields.Int("replicas", 1, {.least = 0});
    manifest->replicas[role.key] = count;
    if (InMesh(role.key)) in_mesh += count;
  }
  return in_mesh;
}

// The program, its strategy and what both say together.
void Finish(Problems& problems, const Node& program, const std::string& path, Place strategy_place,
            const std::string& strategy_path, ReadOptions options, Manifest* manifest) {
  manifest->program = ReadProgram(problems, program, path);
  if (options.device_kind) {
    manifest->program.devices.kind = *options.device_kind;
    manifest->program.devices.kind_given = options.device_kind;
  }
  // Beside parameter servers every process computes by itself.
  if (manifest->strategy == "ParameterServer") options.processes = 1;
  ApplyStrategy(problems, strategy_place, strategy_path, options, manifest);
  manifest->program.processes = options.processes;
  CheckProgram(problems, manifest->program, options);
}

}  // namespace

Program ReadProgram(Problems& problems, const Node& node, const std::string& path) {
  Program program;
  program.file = problems.file();
  program.path = path;
  ReadFields(problems, node, path, ProgramFields(), &program);
  program.places.emplace("", node.place);
  NotePlaces(node, "", &program.places);
  return program;
}

Node WriteProgram(const Program& program) { return WriteFields(ProgramFields(), &program); }

std::optional<Parts> FindParts(const std::vector<Node>& documents, Problems& problems) {
  Parts parts;
  for (const Node& document : documents) {
    const Node* kind = document.Find("kind");
    if (kind == nullptr || kind->scalar != "TrainingJob") continue;
    if (parts.job != nullptr) {
      problems.Add(document.place, "", "expected one TrainingJob, got: another");
      return std::nullopt;
    }
    parts.job = &document;
  }
  if (parts.job != nullptr) {
    const Node* spec = parts.holder = parts.job->Find("spec");
    if (spec == nullptr || !spec->IsMap()) {
      problems.Add(spec != nullptr ? spec->place : parts.job->place, "spec",
                   "expected a map, got: " + (spec != nullptr ? spec->Describe() : "nothing"));
      return std::nullopt;
    }
    if (const Node* program = Part(*spec, "program")) parts.program = *program;
    parts.strategy = Part(*spec, "strategy");
    parts.checkpoint = Part(*spec, "checkpoint");
    return parts;
  }
  if (documents.empty()) {
    problems.Add({}, "", "expected a TrainingJob or a program, got: an empty text");
    return std::nullopt;
  }
  const Node& only = documents[0];
  if (const Node* kind = only.Find("kind"); kind != nullptr) {
    problems.Add(kind->place, "kind", "expected TrainingJob, got: " + kind->Describe());
    return std::nullopt;
  }
  if (documents.size() > 1) {
    problems.Add(documents[1].place, "",
                 "expected one program, got: a second document (documents end at ---)");
    return std::nullopt;
  }
  if (!only.IsMap()) {
    problems.Add(only.place, "", "expected a TrainingJob or a program, got: " + only.Describe());
    return std::nullopt;
  }
  parts.holder = &only;
  parts.strategy = Part(only, kBesideProgram[0]);
  parts.checkpoint = Part(only, kBesideProgram[1]);
  if (const Node* program = only.Find("program")) {
    parts.program = *program;
    Fields fields(problems, only, "");
    fields.Get("program");
    for (const std::string_view key : kBesideProgram) fields.Get(key);
    return parts;
  }
  // Its fields stand at the top, and these two among them.
  parts.program = only;
  std::erase_if(parts.program->members, [](const Node::Member& member) {
    return std::find(kBesideProgram.begin(), kBesideProgram.end(), member.key) !=
           kBesideProgram.end();
  });
  return parts;
}

Result<std::optional<Manifest>> Read(std::string_view text, const ReadOptions& options,
                                     Problems& problems) {
  MT_ASSIGN_OR_RETURN(std::vector<Node> documents,
                      ParseDocuments(text, problems.file(), [&](Place place, std::string what) {
                        problems.Add({place, "", std::move(what), ""});
                      }));
  const std::optional<Parts> parts = FindParts(documents, problems);
  if (!parts) return std::optional<Manifest>();
  Manifest manifest;
  ReadOptions read = options;
  const std::string above = parts->job != nullptr ? "spec." : "";
  if (parts->job != nullptr) {
    if (!parts->program) {
      return NotFound(At(problems.file(), parts->holder->place, "spec") +
                      "`program` is missing: this job runs an image of its own");
    }
    ReadMetadata(problems, *parts->job, &manifest);
    const int64_t in_mesh = ReadReplicas(problems, *parts->holder, &manifest);
    if (options.processes == 1 && in_mesh > 0) read.processes = in_mesh;
  }
  Place strategy_place = parts->holder->place;
  for (const Node::Member& member : parts->holder->members) {
    if (member.key == "strategy") strategy_place = member.place;
  }
  if (parts->strategy != nullptr) {
    if (parts->strategy->IsScalar()) {
      manifest.strategy = parts->strategy->scalar;
    } else {
      problems.Add(parts->strategy->place, above + "strategy",
                   "expected a text, got: " + parts->strategy->Describe());
    }
  }
  if (parts->checkpoint != nullptr) {
    Fields fields(problems, *parts->checkpoint, above + "checkpoint");
    if (parts->job != nullptr) fields.AllowOthers();  // volumeClaimTemplate is the operator's
    ReadFields(fields, CheckpointFields(), &manifest.checkpoint);
  }
  Finish(problems, *parts->program, "program", strategy_place, above + "strategy", read, &manifest);
  return std::optional<Manifest>(std::move(manifest));
}

std::vector<Problem> Mistakes(const JobFacts& job) {
  Problems problems("");
  const auto documents = ParseDocuments(job.program, "");
  if (!documents.ok()) return {{{}, "spec.program", documents.status().message(), "spec.program"}};
  if (documents->size() != 1) {
    return {{{}, "spec.program", "expected a map, got: nothing", "spec.program"}};
  }
  Manifest manifest;
  manifest.strategy = job.strategy;
  Finish(problems, documents->front(), "spec.program", {}, "spec.strategy",
         {.processes = job.processes}, &manifest);
  return problems.Sorted();
}

std::vector<std::pair<std::string, int>> WeightsOf(const Layer& layer) {
  std::vector<std::pair<std::string, int>> weights;
  const Entry* row = Layers().Find(layer.kind);
  if (row == nullptr || !row->weights) return weights;
  for (const auto& [weight, rank] : row->weights(layer.options)) {
    weights.emplace_back(layer.name + "." + weight, rank);
  }
  return weights;
}

std::vector<Output> Outputs(const Program& program) {
  if (!program.outputs.empty()) return program.outputs;
  Output only;
  only.loss = program.loss;
  only.metrics = program.metrics;
  only.spot = {program.PlaceOf("loss"), program.path};
  return {std::move(only)};
}

std::vector<std::string> Components(const Choice& source) {
  const Entry* row = Sources().Find(source.kind);
  std::vector<std::string> all = row == nullptr ? Entry{}.components : row->components;
  const Choice* more = row == nullptr ? nullptr : source.options.Chosen(row->more_components);
  if (more == nullptr) return all;
  for (std::string& name : more->options.names()) all.push_back(std::move(name));
  return all;
}

std::vector<std::string> Components(const Program& program) {
  return Components(program.data.train.from);
}

int64_t PartOfBatch(const Program& program) {
  const int64_t parts = std::max<int64_t>(1, program.train.accumulate);
  return (program.data.batch + parts - 1) / parts;
}

LayoutSpecs InputSpecs(const Program& program, const std::string& input, int rank) {
  const auto given = program.layout.inputs.find(input);
  if (given != program.layout.inputs.end()) return given->second;
  LayoutSpecs specs(rank < 0 ? 1 : static_cast<size_t>(rank), std::string(mesh::UNSHARDED));
  const bool has_batch = std::any_of(program.mesh.begin(), program.mesh.end(),
                                     [](const mesh::Axis& a) { return a.name == "batch"; });
  if (has_batch && !specs.empty()) specs[0] = "batch";
  return specs;
}

}  // namespace meshtrain::manifest
