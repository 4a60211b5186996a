// Batches for one of several processes that step together. While it waits for one, the others may
// be lost, or take it for lost: it hears so at once, and joins again with them, however long the
// batch still takes.
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/membership/team.h"
#include "runtime/train/loop.h"

namespace meshtrain::trainer {

// One thread. `batches` and `team` must outlive it.
class TeamBatches final : public train::BatchSource {
 public:
  TeamBatches(train::BatchSource& batches, membership::Team& team)
      : batches_(batches), team_(team) {}

  Status Begin() override { return batches_.Begin(); }
  // Errors: also Team::loss.
  Result<std::optional<train::Batch>> Next(std::stop_token stop) override {
    std::stop_source either;
    const auto end = [&either] { either.request_stop(); };
    const std::stop_callback on_stop(stop, end);
    const std::stop_callback on_loss(team_.lost(), end);
    auto next = batches_.Next(either.get_token());
    if (next.ok() || stop.stop_requested()) return next;
    if (const Status loss = team_.loss(); !loss.ok()) return loss.At("waiting for a batch");
    return next;
  }
  Status CheckFinite() override { return batches_.CheckFinite(); }
  std::vector<std::string> component_names() const override { return batches_.component_names(); }
  int64_t steps_per_epoch() const override { return batches_.steps_per_epoch(); }
  bool endless() const override { return batches_.endless(); }

 private:
  train::BatchSource& batches_;
  membership::Team& team_;
};

}  // namespace meshtrain::trainer
