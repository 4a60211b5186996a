// The training loop, over whatever runs the steps. A step is a call of `StepRunner`; between steps
// come callbacks and the stop token, and nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/mesh/tensor.h"
#include "runtime/train/figures.h"

namespace meshtrain::train {

// The step's inputs, in the order of their source's component_names, of `size` examples.
struct Batch {
  std::vector<mesh::Tensor> components;
  int64_t size = 0;
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // An evaluation is about to begin: where it can, the next batch is the first one of the pass that
  // the first evaluation began, so that all are of the same examples. Here: nothing is done.
  virtual Status Begin() { return OkStatus(); }
  // The next batch; nothing at the end of a pass, and then the next pass begins. Errors: the
  // data's; kCancelled when `stop` was requested.
  virtual Result<std::optional<Batch>> Next(std::stop_token stop) = 0;
  // Asked after a step on the batch that Next gave last has given what is not finite. Error, of
  // Origin::kInput: the data is not finite, with file and example; where several processes run the
  // step, the same in all of them. Here: nothing is known.
  virtual Status CheckFinite() { return OkStatus(); }
  // What a batch's components are called, each once. Here: x and y.
  virtual std::vector<std::string> component_names() const { return {"x", "y"}; }
  // Batches of one pass, -1 when unknown.
  virtual int64_t steps_per_epoch() const { return -1; }
  // Whether a pass has no end, so that who takes batches says how many.
  virtual bool endless() const { return false; }
};

struct Position;

// Runs traced programs over its states. Called by one thread.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // One step; on return the states are those after it. Errors: kAborted for a bad step, one whose
  // loss or a gradient is not finite, which changes no state; the message says what was not finite
  // first. Where several processes run the step, it is bad in all of them.
  virtual Result<BatchFigures> TrainStep(const Batch& batch) = 0;
  // Reads the states only.
  virtual Result<BatchFigures> EvalStep(const Batch& batch) = 0;
  // Saves the states, which are those of `position`, and the position. May return before the save
  // is durable; a later call waits for it.
  virtual Status Save(const Position& position) = 0;
  // The newest step that Save was called for without an error, -1: none.
  virtual int64_t last_saved() const = 0;
  // The figures of a step that are no means of examples, with as many zeros as they have sums.
  virtual std::vector<FigureSums> summed() const { return {}; }
};

struct EpochInfo;

// Where training stands; enough, with the data's cursor, to go on from a checkpoint with the same
// epoch means and the same history.
struct Position {
  int64_t step = 0;      // finished steps
  int64_t epoch = 0;     // finished epochs
  int64_t batch = 0;     // finished batches of this epoch, those of bad steps among them
  FigureTotals figures;  // of this epoch's batches so far; a bad step has none
  // The finished epochs, as far as they are known: null where none is. Never changed once made, so
  // that positions are cheap to copy.
  std::shared_ptr<const std::vector<EpochInfo>> history;

  // An epoch of a loop of one's own has ended, at this step: it is the newest of the history, and
  // the next one begins.
  void EndEpoch(EpochInfo info);
};

struct StepInfo {
  const Position& position;  // this step counted
  int64_t epochs = 0;
  int64_t steps_per_epoch = -1;
  int64_t total_steps = -1;
  int64_t examples = 0;    // in this batch
  Duration seconds{};      // of this step alone
  Duration input_wait{};   // before it, for its batch
  const Scalars& scalars;  // means over this batch
};

// A step that changed nothing, because its loss or a gradient was not finite.
struct BadStepInfo {
  const Position& position;  // this step counted
  int64_t in_a_row = 1;      // bad steps since the last good one, this one included
  // "output `loss` is not finite; first not finite: log at model.cc:31"; of data that is not finite
  // with BatchSource::CheckFinite's message behind it.
  const std::string& why;
};

// One row of the history: means over the epoch's examples, and over those of its validation.
struct EpochInfo {
  int64_t epoch = 0;  // from 1
  int64_t epochs = 0;
  int64_t step = 0;  // finished steps at its end
  Scalars train;
  Scalars validation;  // empty when none was asked for
  Duration seconds{};
};

enum class FitEnd : uint8_t {
  kFinished,
  kStopped,    // by the stop token or by a callback
  kNotFinite,  // too many bad steps in a row, or a metric that is NaN or infinite
};

struct FitResult {
  FitEnd end = FitEnd::kFinished;
  Position position;
  std::vector<EpochInfo> history;  // with that of the position it began at
  // Of kNotFinite, whose fault it is: kInput where the last batch's data is not finite
  // (BatchSource::CheckFinite, or the step's own error where it read its data elsewhere), so that
  // no other attempt would go better.
  Origin whose = Origin::kNumbers;
  // Why it ended before its end: "step 12: output `loss` is not finite; first not finite: log
  // (logits) at model.cc:31; no variable was changed; the last checkpoint is of step 10"; "step 70:
  // val_loss has not been better than 0.2301, that of epoch 4, for 3 epochs".
  std::string message;
};

// Called between steps, by the thread of Fit. An error ends Fit with it.
class Callback {
 public:
  virtual ~Callback() = default;
  virtual Status OnTrainBegin(const Position&) { return OkStatus(); }
  virtual Status OnStepEnd(const StepInfo&) { return OkStatus(); }
  // In OnStepEnd's place.
  virtual Status OnBadStep(const BadStepInfo&) { return OkStatus(); }
  // After the epoch's validation; `position` is where the next epoch begins.
  virtual Status OnEpochEnd(const EpochInfo&, const Position&) { return OkStatus(); }
  virtual Status OnTrainEnd(const FitResult&) { return OkStatus(); }
  // Asked after each step and epoch, and before the first step where epochs are known to lie behind
  // it: why training is to end here; nothing: it goes on.
  virtual std::optional<std::string> WantsStop() const { return std::nullopt; }
};

struct LoopOptions {
  int64_t epochs = 1;
  int64_t steps_per_epoch = -1;  // -1: a pass of the data; else passes are joined end to end
  BatchSource* validation = nullptr;
  int64_t validation_steps = -1;    // -1: a pass, as is more than it has
  int64_t validate_every = 1;       // epochs; 0: never
  int64_t end_after_bad_steps = 1;  // in a row; those before are counted, and training goes on
  Position start;
};

// kInvalidArgument where `data` is endless and `steps` says no number; `what` is where it would.
Status CheckEnds(const BatchSource& data, int64_t steps, std::string_view what);

// Trains until `epochs` are finished (those before start.epoch counted). Errors: the runner's, the
// data's, a callback's; kInvalidArgument when a pass holds no batch, for endless data
// (the validation's too) without a number of steps, or when `start` is no place in a run of these
// epochs (a count below 0, more batches than an epoch has). A stop is not
// an error: the state is whole, and what saves it (CheckpointEvery) does so in OnTrainEnd.
Result<FitResult> Fit(StepRunner& runner, BatchSource& data, const LoopOptions& options,
                      std::span<Callback* const> callbacks, std::stop_token stop,
                      Clock& clock = SystemClock());

// Means over the examples of one pass, or of its first `steps` batches where it has more, from
// where BatchSource::Begin leaves the data. Errors: as Fit's; kCancelled when stopped.
Result<Scalars> Evaluate(StepRunner& runner, BatchSource& data, int64_t steps,
                         std::stop_token stop);

}  // namespace meshtrain::train
