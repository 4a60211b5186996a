#include "runtime/strategy/dataset.h"

#include <utility>

namespace meshtrain::strategy {

struct DistributedIterator::Shared {
  std::unique_ptr<data::Pipeline> pipeline;
  int64_t replicas = 1, first = 0, count = 1;
  int64_t iterators = 0;      // begun so far
  Status begun = OkStatus();  // how the newest one's pass began
};

DistributedIterator::DistributedIterator(std::shared_ptr<Shared> shared, int64_t steps)
    : shared_(std::move(shared)), number_(shared_->iterators), steps_(steps) {}

Result<std::optional<PerReplicaBatch>> DistributedIterator::Next(std::stop_token stop) {
  Shared& s = *shared_;
  if (number_ != s.iterators) {
    return FailedPrecondition(
        "dataset: expected its newest iterator, got: one that a later Iterate has ended");
  }
  MT_RETURN_IF_ERROR(s.begun);
  if (ended_ || steps_ == 0) return std::optional<PerReplicaBatch>();
  MT_ASSIGN_OR_RETURN(std::optional<data::Batch> batch, s.pipeline->Next(stop));
  if (!batch && steps_ < 0) {
    ended_ = true;
    return std::optional<PerReplicaBatch>();
  }
  if (!batch) {
    MT_ASSIGN_OR_RETURN(batch, s.pipeline->Next(stop));
  }
  if (!batch) return InvalidArgument("dataset: a pass of it holds no batch");
  if (steps_ > 0) --steps_;
  MT_ASSIGN_OR_RETURN(PerReplicaBatch pieces,
                      SplitBatch(batch->components, s.replicas, s.first, s.count));
  return std::optional<PerReplicaBatch>(std::move(pieces));
}

DistributedDataset::DistributedDataset(std::unique_ptr<data::Pipeline> pipeline, int64_t replicas,
                                       int64_t first, int64_t count)
    : shared_(std::make_shared<DistributedIterator::Shared>()) {
  shared_->pipeline = std::move(pipeline);
  shared_->replicas = replicas;
  shared_->first = first;
  shared_->count = count;
  shared_->pipeline->UseOnly([=](int64_t examples) {
    return std::pair(RowsOf(examples, replicas, first).first,
                     RowsOf(examples, replicas, first + count - 1).second);
  });
}

DistributedIterator DistributedDataset::Iterate(int64_t steps) {
  ++shared_->iterators;
  shared_->begun = BeginPass(*shared_->pipeline);
  return DistributedIterator(shared_, steps < 0 ? -1 : steps);
}

int64_t DistributedDataset::steps_per_epoch() const { return shared_->pipeline->steps_per_epoch(); }
int64_t DistributedDataset::global_batch_size() const { return shared_->pipeline->batch_size(); }

Status PipelineBatches::Begin() {
  if (!begin_) {
    MT_RETURN_IF_ERROR(BeginPass(pipeline_));
    begin_ = pipeline_.cursor();
  }
  if (pipeline_.cursor() == *begin_) return OkStatus();  // batches made ahead stay
  return pipeline_.Restore(*begin_);
}

Result<std::optional<train::Batch>> PipelineBatches::Next(std::stop_token stop) {
  auto next = pipeline_.Next(std::move(stop));
  MT_RETURN_IF_ERROR(next.status());
  if (!next->has_value()) return std::optional<train::Batch>();
  return std::optional<train::Batch>({std::move((*next)->components), (*next)->size});
}

Status BeginPass(data::Pipeline& pipeline) {
  data::Cursor at = pipeline.cursor();
  if (at.batch == 0) return OkStatus();
  ++at.epoch;
  at.batch = 0;
  return pipeline.Restore(at);
}

Result<std::unique_ptr<data::Pipeline>> ArraysPipeline(std::vector<mesh::Tensor> arrays,
                                                       int64_t batch_size,
                                                       std::vector<std::string> names) {
  data::PipelineSpec spec;
  spec.source.from = data::MemoryArrays{.components = std::move(arrays), .names = std::move(names)};
  spec.stages = {data::BatchStage{batch_size}};
  return data::Pipeline::Create(std::move(spec));
}

}  // namespace meshtrain::strategy
