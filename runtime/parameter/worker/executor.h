// What a worker does with the steps that it is sent: reads the variables from the servers, runs the
// program, sends what it pushes, and answers when the servers have acknowledged.
//
// Small variables come back with the answer to a push. A step reads the servers only where what is
// held so lacks something that the coordinator knew of when it sent the step.
//
// Steps begin in the order in which they were sent, on one thread. The next one may begin while the
// pushes of the one before are still under way: how many, the coordinator decides by how many it
// sends. A server that is away is tried again until the step's time for it is over; a push that was
// computed from too old a version is computed anew, from the same batch and under the same number.
// So is a step that ended for want of a server and comes again in the same incarnation: what a
// server has of it is not applied twice.
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/execute/session.h"
#include "runtime/mesh/mesh.h"
#include "runtime/parameter/messages/messages.h"
#include "runtime/parameter/messages/transfer.h"

namespace meshtrain::parameter {

struct ExecutorOptions {
  Identity identity;
  // Of this worker's own devices. Inputs are split along its axis "batch", where it has one; all
  // else is left to cost.
  mesh::Mesh mesh;
  execute::SessionOptions session;
  Duration rpc_timeout = std::chrono::seconds(30);  // of one pull or push
};

class Executor {
 public:
  explicit Executor(ExecutorOptions options);
  // Begins to answer; once, before anything is asked. Errors: kUnavailable (no thread).
  Status Start();
  ~Executor();  // Close()
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  using Done = std::function<void(Status status)>;
  using RunDone = std::function<void(Result<RunReply> reply, std::vector<mesh::Tensor> outputs)>;

  // Forgets the incarnation before; its steps are answered with kFailedPrecondition. Errors: what
  // this worker cannot take, of the origin whose it is (kManifest: a step that does not fit,
  // kInput: data, kOutput: a place that is not in this data); kFailedPrecondition of no origin for
  // a term or an incarnation that is over.
  void SetUp(WorkerSetUpRequest request, Done done);
  // Errors: as SetUp's; kFailedPrecondition of no origin where entries would be missing before
  // `first`.
  void Load(LoadRequest request, Done done);
  // `tensors`: of the request's arguments of that kind. A step that failed is an answer, whatever
  // its error; an error of the call means that the coordinator has to set this worker up
  // (kFailedPrecondition), or that it is going away (kCancelled).
  void Run(RunRequest request, std::vector<mesh::Tensor> tensors, RunDone done);

  WorkerPingReply Ping() const;
  // Answers the steps under way with kCancelled, and everything after.
  void Close();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::parameter
