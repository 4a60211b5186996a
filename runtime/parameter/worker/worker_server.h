// The process of a worker: an executor behind a port. It needs nothing but its address; the
// coordinator tells the rest.
#pragma once

#include <memory>

#include "runtime/base/status.h"
#include "runtime/parameter/messages/chief_watch.h"
#include "runtime/parameter/worker/executor.h"

namespace meshtrain::parameter {

struct WorkerOptions {
  int port = 0;         // 0: any free one
  std::string address;  // a numeric one to listen at; "": all of the host
  ExecutorOptions executor;
};

class WorkerServer {
 public:
  // Errors: kUnavailable for a port that is taken; of the certificate files.
  static Result<std::unique_ptr<WorkerServer>> Serve(WorkerOptions options);
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

  int port() const;
  // Thread-safe. The coordinator has said that the job is done.
  bool ended() const;
  // Thread-safe.
  ChiefSeen chief() const;

 private:
  class Impl;
  explicit WorkerServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::parameter
