// Data and a runner that only count, for tests of the training loop and of its callbacks.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <stop_token>
#include <string_view>
#include <vector>

#include "runtime/train/loop.h"

namespace meshtrain::train {

// Batches of 2 examples, the last of a pass of 1; `passes` counts those that ended, `begun` the
// evaluations.
class FakeData final : public BatchSource {
 public:
  explicit FakeData(int64_t batches) : batches_(batches) {}
  Status Begin() override {
    next_ = 0;
    ++begun;
    return begins;
  }
  Result<std::optional<Batch>> Next(std::stop_token) override {
    if (before_next) before_next();
    if (next_ == batches_) {
      next_ = 0;
      ++passes;
      return std::optional<Batch>();
    }
    ++next_;
    return std::optional<Batch>(Batch{.size = next_ == batches_ ? 1 : 2});
  }
  Status CheckFinite() override { return finite; }
  int64_t steps_per_epoch() const override { return batches_; }
  int passes = 0, begun = 0;
  Status finite;  // what CheckFinite gives
  Status begins;  // what Begin gives
  std::function<void()> before_next;

 private:
  int64_t batches_;
  int64_t next_ = 0;
};

// Step n has loss 1/n; evaluation gives 10, 20, ...
class FakeRunner final : public StepRunner {
 public:
  Result<BatchFigures> TrainStep(const Batch& batch) override {
    examples += batch.size;
    ++steps;
    if (before_step_returns) before_step_returns(steps);
    if (bad_at.contains(steps)) {
      return Aborted(
          "output `loss` is not finite; first not finite: log (hidden_1) at model.cc:31");
    }
    return BatchFigures{{{"loss", 1.0 / static_cast<double>(steps)},
                         {"accuracy", steps == nan_at ? std::nan("") : 0.5}},
                        said_examples.value_or(batch.size)};
  }
  Result<BatchFigures> EvalStep(const Batch& batch) override {
    return BatchFigures{{{"loss", 10.0 * static_cast<double>(++evals)}}, batch.size};
  }
  Status Save(const Position& position) override {
    saved.push_back(position.step);
    positions.push_back(position);
    if (after_save) after_save();
    return OkStatus();
  }
  int64_t last_saved() const override { return saved.empty() ? -1 : saved.back(); }
  std::vector<FigureSums> summed() const override { return sums; }

  std::vector<FigureSums> sums;
  int64_t steps = 0, evals = 0, examples = 0, nan_at = -1;
  std::set<int64_t> bad_at;
  std::optional<int64_t> said_examples;  // of a training step; none: its batch's
  std::vector<int64_t> saved;
  std::vector<Position> positions;  // of what was saved
  std::function<void()> after_save;
  std::function<void(int64_t)> before_step_returns;
};

inline double Of(const Scalars& scalars, std::string_view name) {
  return FindScalar(scalars, name).value_or(std::numeric_limits<double>::quiet_NaN());
}

}  // namespace meshtrain::train
