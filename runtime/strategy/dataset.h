// Batches divided among replicas.
//
//   MT_ASSIGN_OR_RETURN(auto dataset, strategy->DistributeDataset(std::move(pipeline)));
//   for (auto it = dataset.Iterate();;) {                 // one pass
//     MT_ASSIGN_OR_RETURN(const auto batch, it.Next());
//     if (!batch) break;
//     ...
//   }
//   auto ten = dataset.Iterate(10);                       // ten steps, through the ends of passes
//
// An iterator begins a pass of its own (a shuffle orders each anew) and ends the one before it. One
// thread.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>

#include "runtime/base/status.h"
#include "runtime/data/cursor.h"
#include "runtime/data/pipeline.h"
#include "runtime/strategy/values.h"
#include "runtime/train/loop.h"

namespace meshtrain::strategy {

class DistributedIterator {
 public:
  // The next batch's parts for the replicas of this process; nothing at the end. Errors: the
  // data's; kFailedPrecondition after the dataset has begun another iterator; kInvalidArgument
  // where a pass holds no batch.
  Result<std::optional<PerReplicaBatch>> Next(std::stop_token stop = {});

 private:
  friend class DistributedDataset;
  struct Shared;
  DistributedIterator(std::shared_ptr<Shared> shared, int64_t steps);
  std::shared_ptr<Shared> shared_;
  int64_t number_;  // of this iterator
  int64_t steps_;   // left; -1: to the end of the pass
  bool ended_ = false;
};

class DistributedDataset {
 public:
  // Replicas [first, first + count) of `replicas`.
  DistributedDataset(std::unique_ptr<data::Pipeline> pipeline, int64_t replicas, int64_t first,
                     int64_t count);

  // One pass, or exactly `steps` batches.
  DistributedIterator Iterate(int64_t steps = -1);
  int64_t steps_per_epoch() const;
  int64_t global_batch_size() const;

 private:
  std::shared_ptr<DistributedIterator::Shared> shared_;
};

// Batches of a pipeline for train::Fit, the same in every process.
class PipelineBatches final : public train::BatchSource {
 public:
  explicit PipelineBatches(data::Pipeline& pipeline) : pipeline_(pipeline) {}
  // The first time BeginPass; from then on the beginning of that pass.
  Status Begin() override;
  Result<std::optional<train::Batch>> Next(std::stop_token stop) override;
  Status CheckFinite() override { return pipeline_.CheckFinite(); }
  std::vector<std::string> component_names() const override { return pipeline_.component_names(); }
  int64_t steps_per_epoch() const override { return pipeline_.steps_per_epoch(); }
  bool endless() const override { return pipeline_.endless(); }

 private:
  data::Pipeline& pipeline_;
  std::optional<data::Cursor> begin_;  // of evaluations; none: there was none yet
};

// Puts a pipeline to the beginning of a pass: where it stands, if that is one, else the next.
// Errors: the pipeline's.
Status BeginPass(data::Pipeline& pipeline);

// A pipeline of arrays, in batches. `names`: of the components; none: data::ComponentNames.
Result<std::unique_ptr<data::Pipeline>> ArraysPipeline(std::vector<mesh::Tensor> arrays,
                                                       int64_t batch_size,
                                                       std::vector<std::string> names = {});

}  // namespace meshtrain::strategy
