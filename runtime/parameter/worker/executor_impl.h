// What executor.cc, executor_step.cc and executor_exchange.cc share: the executor's state, and who
// may touch it. A step begins on the executor's thread, waits there for what it pulls, and ends
// where the last of its pushes is acknowledged, on a thread of gRPC.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/thread.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/parameter/worker/dataset.h"
#include "runtime/parameter/worker/executor.h"

namespace meshtrain::parameter {

using execute::LoadedStep;
using mesh::Tensor;
using mesh::TensorType;
using program::Variable;

// Of a variable's part that starts at row r, the first byte is r * RowBytes(type of the whole).
inline int64_t RowBytes(const TensorType& type) {
  return type.dims.empty() || type.dims[0] == 0 ? type.num_bytes()
                                                : type.num_bytes() / type.dims[0];
}

class Executor::Impl {
 public:
  explicit Impl(ExecutorOptions options) : options_(std::move(options)), boot_(DrawBoot()) {}
  Status Start() {
    MT_ASSIGN_OR_RETURN(thread_,
                        StartThread("a worker's steps", [this](std::stop_token s) { Loop(s); }));
    return OkStatus();
  }
  void Close() {
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      closed_ = true;
      abort_.request_stop();
    }
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
    const Status why = Cancelled("the worker is shutting down");
    EndRuns(why);
    peers_.clear();
    std::deque<Task> left;
    {
      MutexLock lock(mutex_);
      left.swap(queue_);
    }
    for (Task& task : left) task.run(why);
  }

  void SetUp(WorkerSetUpRequest request, Done done) {
    {
      // The step that is running ends at its next wait; what is queued behind it finds its
      // incarnation over.
      MutexLock lock(mutex_);
      const bool newer =
          request.term > term_ || (request.term == term_ && request.incarnation > incarnation_);
      if (newer) abort_.request_stop();
    }
    Add([this, request = std::move(request), done](const Status& alive) mutable {
      done(alive.ok() ? DoSetUp(std::move(request)) : alive);
    });
  }
  void Load(LoadRequest request, Done done) {
    Add([this, request = std::move(request), done](const Status& alive) mutable {
      done(alive.ok() ? DoLoad(std::move(request)) : alive);
    });
  }
  void Run(RunRequest request, std::vector<Tensor> tensors, RunDone done) {
    auto run = std::make_shared<StepRun>();
    run->request = std::move(request);
    run->inputs = std::move(tensors);
    run->done = std::move(done);
    Add([this, run](const Status& alive) {
      if (!alive.ok()) return Abandon(*run, alive);
      Begin(run);
    });
  }
  WorkerPingReply Ping() {
    MutexLock lock(mutex_);
    return {term_, incarnation_, boot_};
  }

 private:
  // Called with OK on the thread, or with why it will not be.
  struct Task {
    std::function<void(const Status& alive)> run;
  };
  struct Function {
    StepFunction spec;
    std::vector<TensorType> inputs;
    std::unique_ptr<LoadedStep> step;
    std::set<int32_t> servers;                                 // that it reads
    std::map<int32_t, std::vector<const PulledPart*>> wanted;  // by server, where they are small
  };
  using Loaded = std::variant<std::unique_ptr<Function>, std::unique_ptr<data::Pipeline>, Tensor>;
  // A variable as last pulled.
  struct Held {
    Variable variable;
    Tensor host;
    std::map<std::string, int64_t> versions;  // by shard
    bool written = false;                     // the session has what `host` has
  };
  // Variables that came with the answer to a push, until the thread takes them over.
  struct Arrived {
    int64_t version = -1;
    std::vector<PulledPart> parts;
    std::vector<std::string> variables;  // that they are parts of
    std::vector<Tensor> values;
  };
  // One step from its request to its answer.
  struct StepRun {
    RunRequest request;
    RunDone done;
    Duration until{};  // monotonic: how long servers are waited for; anew once it has computed
    const Function* function = nullptr;
    std::vector<Tensor> inputs;
    std::map<int64_t, std::vector<int64_t>> examples;  // of its batch, by the entry of the dataset
    RunReply reply;
    std::vector<Tensor> outputs;
    int64_t seq = -1;  // -1: pushes nothing

    Mutex mutex;
    bool finished MT_GUARDED_BY(mutex) = false;
    std::vector<Tensor> pushed MT_GUARDED_BY(mutex);  // by output of the program
    std::set<size_t> open MT_GUARDED_BY(mutex);  // of function->spec.pushes, those not acknowledged
    std::set<size_t> sent MT_GUARDED_BY(mutex);  // of those, the ones under way
    bool stale MT_GUARDED_BY(mutex) = false;     // computed from too old a version: again
    bool pull_anew = false;                      // what is held is too old, whatever its version
    std::vector<int64_t> based_on;               // by server
  };
  using RunPtr = std::shared_ptr<StepRun>;

  void Loop(std::stop_token stop);
  void Add(std::function<void(const Status&)> run) {
    {
      MutexLock lock(mutex_);
      if (!closed_) {
        queue_.push_back({std::move(run)});
        changed_.NotifyOne();
        return;
      }
    }
    run(Cancelled("the worker is shutting down"));
  }
  void AddLater(Duration after, std::function<void()> run) {
    MutexLock lock(mutex_);
    later_.emplace(SystemClock().Monotonic() + after, std::move(run));
    changed_.NotifyOne();
  }

  Status DoSetUp(WorkerSetUpRequest request);
  Status DoLoad(LoadRequest request);
  Status LoadEntries(std::vector<Entry> entries, const std::vector<CursorAt>& cursors);
  Result<std::unique_ptr<Function>> LoadFunction(StepFunction spec);
  Result<Variable> Hold(const std::string& name, const TensorType& type);
  void EndRuns(const Status& why);

  void Begin(const RunPtr& run);
  // What is kept of the same step, and of none that has ended. null: nothing.
  RunPtr TakeReturned(const RunRequest& request) MT_REQUIRES(mutex_);
  Status Gather(StepRun& run);
  Result<data::Batch> NextBatch(data::Pipeline& pipeline);
  void Compute(const RunPtr& run);
  Status Pull(StepRun& run);
  Status PullFrom(StepRun& run, const std::vector<int32_t>& servers);
  void TakeArrived();
  std::optional<int64_t> HeldVersion(const StepRun& run, int32_t server) const;
  Status WriteHeld(const StepRun& run);
  Status RunStep(StepRun& run);
  Status CheckFinite(const StepRun& run, const std::string& what, const Tensor& value);
  void Send(const RunPtr& run, size_t push);
  void Sent(const RunPtr& run, size_t push, const Result<std::string>& answer,
            std::vector<Tensor> values);
  void Keep(const StepRun& run, int32_t server, int64_t version, std::vector<Tensor> values);
  // The step has ended with `status`: an answer, once.
  void Finish(StepRun& run, const Status& status, RunReply::Cause cause = RunReply::Cause::kStep,
              int32_t server = 0);
  // Its incarnation is over, or the worker is going away: an error of the call, once.
  void Abandon(StepRun& run, const Status& why);
  // The step is under way no more: whether it was. `returned`: it is kept for when it comes again.
  bool End(StepRun& run, bool returned);

  const ExecutorOptions options_;
  const uint64_t boot_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Task> queue_ MT_GUARDED_BY(mutex_);
  std::multimap<Duration, std::function<void()>> later_ MT_GUARDED_BY(mutex_);
  bool closed_ MT_GUARDED_BY(mutex_) = false;
  int64_t term_ MT_GUARDED_BY(mutex_) = 0;
  int64_t incarnation_ MT_GUARDED_BY(mutex_) = 0;
  std::stop_source abort_ MT_GUARDED_BY(mutex_);
  std::set<int64_t> seqs_ MT_GUARDED_BY(mutex_);  // of pushes under way
  std::set<RunPtr> runs_ MT_GUARDED_BY(mutex_);   // begun and not answered
  // By step: what ended for want of a server. Their numbers stay in seqs_.
  std::map<int64_t, RunPtr> returned_ MT_GUARDED_BY(mutex_);
  std::map<int32_t, Arrived> arrived_ MT_GUARDED_BY(mutex_);  // by server, the newest

  // The thread's.
  std::stop_token stop_;  // of this incarnation
  int32_t worker_ = 0, workers_ = 1;
  int64_t next_seq_ = 0;
  std::unique_ptr<execute::Session> session_;
  std::map<std::string, Held> held_;
  std::vector<Loaded> loaded_;               // by entry
  std::map<int64_t, std::string> datasets_;  // their names, by entry
  std::vector<std::unique_ptr<Peer>> peers_;

  std::jthread thread_;
};

}  // namespace meshtrain::parameter
