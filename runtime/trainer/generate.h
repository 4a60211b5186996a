// Sequences of ids that a model writes: each is chosen by what the model says of those before it.
//
//   prompt [7, 2], window 4:   [7 2 _ _] at 1 -> 5,   [7 2 5 _] at 2 -> 1,   [7 2 5 1] at 3 -> 3,
//                              [2 5 1 3] at 3 -> ...
//
// Kept true: the ids follow from the logits, the temperature and the seed alone. Logits of other
// layouts differ in their last bits, as all figures do (docs/numerics.md).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/tensor.h"
#include "runtime/trainer/engine.h"

namespace meshtrain::trainer {

struct GenerateOptions {
  int64_t length = 0;      // ids to write
  double temperature = 0;  // 0: the largest logit, the first of equals
  int64_t seed = 0;
};

// The id that number `index` behind the prompt becomes: at a temperature above 0, drawn by softmax
// of logits / temperature, with the number in [0, 1) that (seed, index) have. Pure. Errors:
// kInvalidArgument, of kNumbers, for logits of which one is NaN or infinity.
Result<int64_t> ChooseId(std::span<const double> logits, const GenerateOptions& options,
                         int64_t index);

// The logits [C] of what comes behind a text.
using NextLogits = std::function<Result<std::vector<double>>(std::span<const int64_t> text)>;
// Those that follow the prompt. Errors: those of `next`; kCancelled when `stop` was requested.
Result<std::vector<int64_t>> WriteIds(std::vector<int64_t> prompt, const GenerateOptions& options,
                                      const NextLogits& next, std::stop_token stop);

// Runs a program of train::BuildNext over a whole window for every id; the last `window` ids of a
// longer text. What stands behind the text in the window must change nothing: that is looked at
// once, by another filling. Errors: kInvalidArgument for a model that looks ahead; the engine's.
class WindowLogits {
 public:
  // `prediction`: the engine's number of the program; `window`: ids of type [1, T].
  WindowLogits(Engine& engine, size_t prediction, mesh::TensorType window, int64_t classes)
      : engine_(engine), prediction_(prediction), window_(std::move(window)), classes_(classes) {}
  Result<std::vector<double>> operator()(std::span<const int64_t> text);
  const mesh::TensorType& window() const { return window_; }

 private:
  Result<std::vector<double>> Run(std::span<const int64_t> text, int64_t filling);

  Engine& engine_;
  size_t prediction_;
  mesh::TensorType window_;
  int64_t classes_;
  bool looked_ = false;
};

// Runs a program of train::BuildNextById once for each id that is new: what the program keeps is of
// those before. A text that is longer than the window begins elsewhere in it with every id: that is
// left to `windows`. Errors: the engine's.
class KeptLogits {
 public:
  KeptLogits(Engine& engine, size_t prediction, WindowLogits windows)
      : engine_(engine), prediction_(prediction), windows_(std::move(windows)) {}
  Result<std::vector<double>> operator()(std::span<const int64_t> text);

 private:
  Engine& engine_;
  size_t prediction_;
  WindowLogits windows_;
  std::vector<int64_t> kept_;  // ids that the program has seen
};

}  // namespace meshtrain::trainer
