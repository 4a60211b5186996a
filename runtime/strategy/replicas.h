// The replicas of one process: each has a session with copies of the variables of its own, and a
// thread that runs its steps; they meet for collectives.
//
// Kept true: every replica makes the same collectives in the same order, else Run ends with an
// error that names two of them; a replica that fails aborts the others' waiting. After a Run that
// failed the copies may differ: `torn()` until Mend. One thread uses a Replicas.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/collective/thread_parties.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/execute/session.h"
#include "runtime/program/builder.h"
#include "runtime/strategy/values.h"
#include "runtime/train/packing.h"

namespace meshtrain::strategy {

// A function as recorded for some local input types.
struct TracedReplica {
  program::Program program;
  std::vector<program::Variable> variables;  // of its states, in their order
  size_t fed = 0;  // inputs that the batch gives; behind them may stand kReplicaIdInput
};

class Replicas {
 public:
  struct Options {
    int64_t replicas = 1;  // in all processes
    int64_t first = 0;     // rank of this process's first
    int64_t count = 1;     // in this process
    int threads = 0;       // of all replicas here together; 0: one per core
    std::string device_kind = "cpu";
    std::vector<int> indices;  // of the devices of those here, among their kind; empty: 0
    Duration deadline = std::chrono::seconds(60);  // how long one replica waits for another
    plan::Options plan;
    train::Packing packing;  // of a program's all-reduces
    // The communicator of this process for `mesh`, whose devices name their process; null: there is
    // one process.
    execute::MakeCommunicator communicator;
    mesh::Mesh process_mesh;
    // What this process's replicas reduce with where it is the only one; null: one pass in shared
    // memory.
    std::function<std::unique_ptr<collective::Communicator>(const mesh::Mesh&)> local;
  };
  static Result<std::unique_ptr<Replicas>> Create(Options options);
  ~Replicas();

  int64_t count() const { return o_.count; }
  const mesh::Mesh& mesh() const { return mesh_; }
  execute::Session& session(int64_t i) { return *replicas_[static_cast<size_t>(i)]->session; }

  // --- variables, by replica of this process
  Status Declare(const program::Variable& variable);
  bool IsDeclared(const program::Variable& variable) const;
  Result<mesh::Tensor> Read(int64_t replica, const program::Variable& variable);
  Status Write(int64_t replica, const program::Variable& variable, const mesh::Tensor& value);
  Status WriteAll(const program::Variable& variable, const mesh::Tensor& value);
  // Runs a program without inputs on the first replica alone.
  Status RunOnFirst(const program::Program& program, std::span<const program::Variable> variables);

  // --- steps
  // Runs traced[i] on replica i, fed with batch.replicas[i]; outputs by output, then by replica.
  // Compiles what was not run before. A traced program must live until Forget. Errors: the first
  // that a replica met by itself, with its name; kAborted for a bad step, which changed no variable
  // on any replica of any process (LoadedStep::Run).
  Result<std::vector<PerReplica>> Run(std::span<const TracedReplica* const> traced,
                                      const PerReplicaBatch& batch);
  // The first half of Run: compiles traced[i] for replica i where that was not done.
  Status Load(std::span<const TracedReplica* const> traced);
  void Forget(const TracedReplica* traced);
  bool torn() const { return torn_; }
  void Mend() { torn_ = false; }

  // --- between the replicas of all processes. Called by every process, in the same order.
  // The sum of one value for each replica: f64 of floats. Errors: as AddAll's; the communicator's.
  Result<mesh::Tensor> Sum(std::span<const mesh::Tensor> values);

  // The step of replica `i` for a traced program, null before it ran.
  const execute::LoadedStep* step(int64_t i, const TracedReplica* traced) const;

 private:
  class Worker;
  struct Replica {
    std::string name;
    int64_t rank = 0;
    std::unique_ptr<execute::Session> session;
    std::map<const TracedReplica*, std::unique_ptr<execute::LoadedStep>> steps;
    std::unique_ptr<Worker> worker;  // null: the caller's thread
  };

  explicit Replicas(Options options);
  Result<std::shared_ptr<collective::Communicator>> Behind(uint64_t signature);
  Status LoadStep(Replica& replica, const TracedReplica& traced);
  static Status RunStep(Replica& replica, const TracedReplica& traced,
                        std::span<const mesh::Tensor> inputs, std::vector<mesh::Tensor>* outputs);
  // body(i) for every replica, on its thread. Of several errors the cause: not that of a replica
  // that another one left waiting.
  Status Each(const std::function<Status(int64_t i)>& body);

  Options o_;
  mesh::Mesh mesh_;  // axis `replica`, each replica in a process of its own
  std::unique_ptr<collective::ThreadParties> parties_;
  Mutex behind_mutex_;
  std::map<uint64_t, std::shared_ptr<collective::Communicator>> behind_
      MT_GUARDED_BY(behind_mutex_);  // by signature
  std::vector<std::unique_ptr<Replica>> replicas_;
  bool torn_ = false;
};

// The program as replica `rank` runs it: dropout draws other masks on each (the first one draws
// those of a single replica). Pure.
program::Program ForReplica(program::Program program, int64_t rank);

// Bytes of a pack of the program's all-reduces; nothing: as the plan has it. Pure.
std::optional<int64_t> BytesPerPack(const train::Packing& packing, const program::Program& program);

}  // namespace meshtrain::strategy
