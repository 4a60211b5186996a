// A manifest's text as data, and back.
//
//   program:
//     mesh: {batch: 8}
//     data: {train: {idx: {images: a.gz, labels: b.gz}}, batch: 128}
//     model: [flatten, dense: {units: 10}]
//     loss: {sparse_categorical_crossentropy: {from_logits: true}}
//     optimizer: adam
//
// Every error says "FILE:LINE:COLUMN: PATH: what", with the nearest name that would have been
// right; all that are found come at once, a line each. Pure: reads no file. The fields and what may
// stand in them are rows (fields/, catalogue/), from which the CRD's text and the reference page
// come too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/manifest/program.h"
#include "runtime/manifest/reader.h"

namespace meshtrain::manifest {

struct ReadOptions {
  int64_t processes = 1;  // in the mesh; devices.count times this must be its size
  std::optional<int64_t>
      max_devices;  // a mesh that needs more (per process) is refused; none: any number
  // As if this stood at devices.kind, whatever does; none: what stands there.
  std::optional<mesh::DeviceKind> device_kind;
};

// The parts of one document that a job consists of.
struct Parts {
  const Node* job = nullptr;     // the whole TrainingJob; null for a program alone
  const Node* holder = nullptr;  // what the parts stand in: the job's spec, or the document
  std::optional<Node> program;
  const Node* strategy = nullptr;    // null where there is none
  const Node* checkpoint = nullptr;  // null where there is none
};
// The one TrainingJob among the documents; else the only document: {program, strategy, checkpoint},
// or a program's fields at the top with the other two beside them. Nothing where there is neither;
// what is wrong goes to `problems`.
std::optional<Parts> FindParts(const std::vector<Node>& documents, Problems& problems);

// A TrainingJob, or a program alone, as YAML or JSON. Without options.processes, chief and workers
// are counted. Nothing where the text is no manifest at all; all mistakes go to `problems`. Errors:
// kNotFound for a TrainingJob without a program; kInvalidArgument for a text that cannot be read.
Result<std::optional<Manifest>> Read(std::string_view text, const ReadOptions& options,
                                     Problems& problems);

// What a cluster knows of a job: values without places.
struct JobFacts {
  std::string_view program;  // JSON
  std::string_view strategy;
  int64_t processes = 1;  // chief and workers
};
// What is wrong with a job's program, with paths below "spec"; empty: nothing that shows without
// its data. For the operator.
std::vector<Problem> Mistakes(const JobFacts& job);

// A program's fields. `path` is what errors call it.
Program ReadProgram(Problems& problems, const Node& node, const std::string& path);
// Text that reads as `program`.
Node WriteProgram(const Program& program);

// What the strategy means for the program: its mesh, where it makes one. Wrong names and
// combinations go to `problems`, under `path` ("spec.strategy").
void ApplyStrategy(Problems& problems, Place place, const std::string& path,
                   const ReadOptions& options, Manifest* manifest);

// What fields say together, as far as it shows without data: axes, devices, divisibility, layouts.
void CheckProgram(Problems& problems, const Program& program, const ReadOptions& options);

// The weights that a layer will make: "hidden_1.kernel" and its rank.
std::vector<std::pair<std::string, int>> WeightsOf(const Layer& layer);
// What is trained of the program's model: `outputs`, or the one output that `loss` and `metrics`
// are of, without a layer's name.
std::vector<Output> Outputs(const Program& program);
// What the components of a source's examples are called, in their order.
std::vector<std::string> Components(const Choice& source);
// Those of the program's batches, as data.train has them.
std::vector<std::string> Components(const Program& program);
// Examples that are computed at once: a batch, or a part of one (train.accumulate).
int64_t PartOfBatch(const Program& program);
// The numbers of a text's characters, as the source `text` of data.train has them. Errors:
// kInvalidArgument: another source; a text without a character, or with one that its alphabet
// lacks.
Result<std::vector<int64_t>> CharacterNumbers(const Program& program, std::string_view text);
// The characters that the source `text` of data.train knows, in the order of their numbers.
std::string Characters(const Program& program);
// The layouts that inputs have: given, or dimension 0 over the axis `batch`. `rank` < 0: not known.
LayoutSpecs InputSpecs(const Program& program, const std::string& input, int rank);

}  // namespace meshtrain::manifest
