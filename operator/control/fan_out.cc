#include "operator/control/fan_out.h"

#include <chrono>

namespace meshtrain::control {

FanOut::FanOut(int helpers) {
  for (int i = 0; i < helpers; ++i) {
    helpers_.emplace_back([this](std::stop_token stop) { Help(stop); });
  }
}

FanOut::~FanOut() {
  for (std::jthread& helper : helpers_) helper.request_stop();
}

void FanOut::RunOne(Batch& batch) {
  const std::function<Status()>& call = (*batch.calls)[batch.next++];
  ++batch.running;
  mutex_.unlock();
  Status status = call();
  mutex_.lock();
  --batch.running;
  if (!status.ok() && batch.first_error.ok()) batch.first_error = std::move(status);
  if (batch.running == 0 && !batch.open()) finished_.NotifyAll();
}

Status FanOut::Run(const std::vector<std::function<Status()>>& calls) {
  if (calls.empty()) return OkStatus();
  if (calls.size() == 1) return calls[0]();
  Batch batch{.calls = &calls};
  MutexLock lock(mutex_);
  batches_.push_back(&batch);
  // As many as there are further calls: others would wake for nothing, and on few cores before
  // those that have work.
  for (size_t more = 1; more < calls.size() && more <= helpers_.size(); ++more) work_.NotifyOne();
  while (batch.open()) RunOne(batch);
  batches_.remove(&batch);
  while (batch.running > 0) {
    finished_.WaitFor(mutex_, std::stop_token(), std::chrono::hours(1),
                      [&] { return batch.running == 0; });
  }
  return batch.first_error;
}

void FanOut::Help(std::stop_token stop) {
  MutexLock lock(mutex_);
  while (!stop.stop_requested()) {
    Batch* batch = nullptr;
    while (!batches_.empty() && batch == nullptr) {
      if (batches_.front()->open()) {
        batch = batches_.front();
        batches_.splice(batches_.end(), batches_, batches_.begin());  // its turn is over
      } else {
        batches_.pop_front();
      }
    }
    if (batch != nullptr) {
      RunOne(*batch);
    } else {
      work_.WaitFor(mutex_, stop, std::chrono::hours(1),
                    [&]() MT_REQUIRES(mutex_) { return !batches_.empty(); });
    }
  }
}

}  // namespace meshtrain::control
