#include "runtime/checkpoint/async.h"

#include <thread>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/base/thread.h"

namespace meshtrain::checkpoint {

class AsyncSaver::Impl {
 public:
  Impl(std::string folder, SaveOptions options, bool background)
      : folder_(std::move(folder)), options_(options), background_(background) {}

  Status Start() {
    if (!background_) return OkStatus();
    MT_ASSIGN_OR_RETURN(thread_,
                        StartThread("checkpoint", [this](std::stop_token stop) { Run(stop); }));
    return OkStatus();
  }

  ~Impl() {
    if (thread_.joinable()) {
      thread_.request_stop();  // a save under way, or handed over, is still finished
      thread_.join();
    }
    MutexLock lock(mutex_);
    if (!error_.ok()) LogError("checkpoint not saved", {{"error", error_.ToString()}});
  }

  Status Save(Snapshot snapshot, std::stop_token stop, Duration timeout) {
    if (closed_) {
      return FailedPrecondition("checkpoint: expected Save() before Close(), got: it after");
    }
    MT_RETURN_IF_ERROR(Wait(std::move(stop), timeout));
    if (const Status finite = CheckFinite(snapshot); !finite.ok()) {
      MutexLock lock(mutex_);
      ++failures_;
      return finite;
    }
    {
      MutexLock lock(mutex_);
      if (std::exchange(replaced_, false)) options_.replaces.clear();
    }
    const Duration begin = SystemClock().Monotonic();
    if (!background_) {
      Write({std::move(snapshot), begin, options_});
      return TakeError();
    }
    {
      MutexLock lock(mutex_);
      pending_ = Pending{std::move(snapshot), begin, options_};
      busy_ = true;
    }
    changed_.NotifyAll();
    return OkStatus();
  }

  Status Wait(std::stop_token stop, Duration timeout) {
    {
      MutexLock lock(mutex_);
      if (!changed_.WaitFor(mutex_, stop, timeout,
                            [this]() MT_REQUIRES(mutex_) { return !busy_; })) {
        if (stop.stop_requested()) return Cancelled("checkpoint: stopped while waiting for a save");
        return DeadlineExceeded(
            "checkpoint: waited for the save before longer than " +
            std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()) +
            " ms");
      }
    }
    return TakeError();
  }

  Status Close(Duration timeout) {
    closed_ = true;
    return Wait({}, timeout);
  }

  void set_generation(int64_t generation) {
    options_.generation = generation;
    abandon_ = std::stop_source();
    options_.abandon = abandon_.get_token();
  }

  void set_replaces(std::vector<std::string> checkpoints) {
    MutexLock lock(mutex_);
    options_.replaces = std::move(checkpoints);
    replaced_ = false;
  }

  void set_pinned(std::optional<int64_t> step) { options_.pinned = step; }
  void set_notes(std::map<std::string, std::string> notes) { options_.notes = std::move(notes); }

  void Abandon() { abandon_.request_stop(); }

  std::optional<SaveReport> last() const {
    MutexLock lock(mutex_);
    return last_;
  }
  int64_t failures() const {
    MutexLock lock(mutex_);
    return failures_;
  }

 private:
  struct Pending {
    Snapshot snapshot;
    Duration begin;
    SaveOptions options;
  };

  Status TakeError() {
    MutexLock lock(mutex_);
    return std::exchange(error_, OkStatus());
  }

  void Write(const Pending& job) {
    Result<std::string> path = CheckFolder(folder_);
    if (path.ok()) path = checkpoint::Save(folder_, job.snapshot, job.options);
    const Duration took = SystemClock().Monotonic() - job.begin;
    MutexLock lock(mutex_);
    if (path.ok()) {
      replaced_ = true;
      last_ = SaveReport{job.snapshot.step, *std::move(path),
                         std::chrono::duration<double>(took).count()};
    } else {
      ++failures_;
      error_ = path.status().At("saving step " + std::to_string(job.snapshot.step));
    }
  }

  void Run(std::stop_token stop) {
    for (;;) {
      std::optional<Pending> job;
      {
        MutexLock lock(mutex_);
        // With `stop` requested this still gives true while a snapshot is waiting.
        if (!changed_.WaitFor(mutex_, stop, std::chrono::hours(1),
                              [this]() MT_REQUIRES(mutex_) { return pending_.has_value(); })) {
          if (stop.stop_requested()) return;
          continue;
        }
        job = std::exchange(pending_, std::nullopt);
      }
      Write(*job);
      job.reset();  // the tensors go before anybody is told
      {
        MutexLock lock(mutex_);
        busy_ = false;
      }
      changed_.NotifyAll();
    }
  }

  const std::string folder_;
  SaveOptions options_;  // the caller's, as
  std::stop_source abandon_;
  const bool background_;
  bool closed_ = false;  // the caller's
  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<Pending> pending_ MT_GUARDED_BY(mutex_);
  bool busy_ MT_GUARDED_BY(mutex_) = false;  // from Save() until written
  Status error_ MT_GUARDED_BY(mutex_);
  bool replaced_ MT_GUARDED_BY(mutex_) = false;  // a save since the last one began has succeeded
  std::optional<SaveReport> last_ MT_GUARDED_BY(mutex_);
  int64_t failures_ MT_GUARDED_BY(mutex_) = 0;
  std::jthread thread_;  // last: it uses all of the above
};

AsyncSaver::AsyncSaver(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AsyncSaver::~AsyncSaver() = default;

Result<std::unique_ptr<AsyncSaver>> AsyncSaver::Create(std::string folder, SaveOptions options,
                                                       bool background) {
  MT_RETURN_IF_ERROR(MakeDirectories(folder));
  auto impl = std::make_unique<Impl>(std::move(folder), options, background);
  MT_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<AsyncSaver>(new AsyncSaver(std::move(impl)));
}

Status AsyncSaver::Save(Snapshot snapshot, std::stop_token stop, Duration timeout) {
  return impl_->Save(std::move(snapshot), std::move(stop), timeout);
}
Status AsyncSaver::Wait(std::stop_token stop, Duration timeout) {
  return impl_->Wait(std::move(stop), timeout);
}
void AsyncSaver::set_generation(int64_t generation) { impl_->set_generation(generation); }
void AsyncSaver::set_replaces(std::vector<std::string> checkpoints) {
  impl_->set_replaces(std::move(checkpoints));
}
void AsyncSaver::set_pinned(std::optional<int64_t> step) { impl_->set_pinned(step); }
void AsyncSaver::set_notes(std::map<std::string, std::string> notes) {
  impl_->set_notes(std::move(notes));
}
void AsyncSaver::Abandon() { impl_->Abandon(); }
Status AsyncSaver::Close(Duration timeout) { return impl_->Close(timeout); }
std::optional<SaveReport> AsyncSaver::last() const { return impl_->last(); }
int64_t AsyncSaver::failures() const { return impl_->failures(); }

}  // namespace meshtrain::checkpoint
