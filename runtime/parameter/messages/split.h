// One step, split between a worker and the servers that hold its variables.
//
// The worker's half reads the variables and changes none: its program gives the user's outputs, and
// one value for each variable that the step changes:
//   gradient  where the step hands one over (an output named GradientName(variable)): the server's
//             optimizer takes it
//   delta     where the step assigns the variable itself: its value after less its value before,
//             which the server adds. So a counter counts every step, and a moving average moves, in
//             whatever order the steps arrive.
//
//   program step                                    program step
//   input x: f32[5,1]                               input x: f32[5,1]
//   state w: f32[1,1] = %1                          state w: f32[1,1] = %1
//   state n: i64[] = %2                             state n: i64[] = %2
//   ...                                        ->   ...
//   output loss = %7                                output loss = %7
//   output gradient/w = %9                          output gradient/w = %9
//   update n = %4                                   output delta/n = %10        (%10 = sub(%4, %2))
//
// The server's half is made for each server from the shards that it holds: BuildVariables and
// BuildUpdate. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/nn/parameter.h"
#include "runtime/parameter/messages/partitioner.h"
#include "runtime/program/program.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/programs.h"

namespace meshtrain::parameter {

using nn::Parameter;
using program::Program;

// --- the worker's half

std::string GradientName(std::string_view variable);  // "gradient/hidden_1.kernel"

// A value that goes to the servers of `variable`.
struct Pushed {
  std::string variable;
  bool gradient = false;  // else a delta
  int output = 0;         // of the worker's program
  friend bool operator==(const Pushed&, const Pushed&) = default;
};

struct WorkerStep {
  Program program;  // updates nothing
  int outputs = 0;  // the user's, first
  std::vector<Pushed> pushed;
};

// Errors: kInvalidArgument for a gradient of no variable of the step, of another type, or of one
// that the step also assigns; for an assigned bool or u8.
Result<WorkerStep> SplitStep(const Program& step);

// `step` with one output more, kExamplesName: the examples of its batch, i64. Who schedules steps
// on the workers' own data does not know how many a worker's next batch has.
inline constexpr std::string_view kExamplesName = "examples";
Program CountingExamples(Program step, int64_t examples);

// An optimizer that hands every gradient over instead of using it; put in a recipe's place of
// `original`, whose clipping it does (the length of a whole gradient is known to the worker only).
// One a trace.
std::unique_ptr<train::Optimizer> GradientTap(const train::Optimizer& original);

// --- the servers' half

// A variable, a slot or a count as one server holds it.
struct ServerState {
  std::string name;  // unique on the server
  mesh::TensorType type;
  std::string global_name;  // in checkpoints: those of a mesh have the same
  mesh::TensorType global_type;
  mesh::Dims offsets;   // of this part in the global value
  bool pulled = false;  // a variable, which workers read
  bool copy = false;    // every server that needs it has one of its own: a count of steps
  bool saved = true;    // this server writes it into checkpoints: of copies, one is
  friend bool operator==(const ServerState&, const ServerState&) = default;
};

// What one server gets to hold.
struct ServerStates {
  std::vector<ServerState> states;
  Program init;  // its updates give every one of `states` its initial value
};

// The variables' shards, by server. `shards` as PlaceShards gave them for `variables`. A shard
// begins as the rows of the whole variable's initial value, so training does not depend on how it
// was cut.
Result<std::vector<ServerStates>> BuildVariables(std::span<const Parameter> variables,
                                                 std::span<const Shard> shards, int servers,
                                                 int64_t seed);

// Records how weights change, given a gradient each; and the slots that it made for that.
struct Updater {
  std::function<void(std::span<const Parameter> weights, std::span<const program::Value> gradients)>
      record;
  std::function<std::vector<Parameter>()> slots;  // may be empty
};
Updater UpdaterOf(std::shared_ptr<train::Optimizer> optimizer);

// A range of rows of one pushed value.
struct PushedRows {
  std::string variable;
  std::string shard;
  mesh::TensorType type;  // of the rows
  int64_t row = 0;
  bool gradient = false;
  friend bool operator==(const PushedRows&, const PushedRows&) = default;
};

struct ServerUpdate {
  ServerStates made;               // slots that this server did not have
  std::optional<Program> program;  // none: this server holds none of the variables
  std::vector<PushedRows> inputs;  // one for each input of the program
};

// What each server does with a push of these variables (names and whether gradients or deltas).
// `known`: the states that each server has already, to which new ones are not added here. Errors:
// kInvalidArgument; the recording's first.
Result<std::vector<ServerUpdate>> BuildUpdate(const std::string& name,
                                              std::span<const Pushed> pushed,
                                              std::span<const Parameter> variables,
                                              std::span<const Shard> shards, int servers,
                                              const Updater& updater, int64_t seed,
                                              const std::vector<std::set<std::string>>& known);

}  // namespace meshtrain::parameter
