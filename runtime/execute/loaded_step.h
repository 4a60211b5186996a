// One program in a session, planned and compiled: ready to run again and again over the session's
// variables. Function makes and runs them; who feeds a step from the host, or reads its plan, holds
// one.
//
// Threads and processes: as Session. Its session outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/collective/communicator.h"
#include "runtime/device/backend.h"
#include "runtime/execute/session.h"
#include "runtime/plan/plan.h"
#include "runtime/program/builder.h"
#include "runtime/program/program.h"

namespace meshtrain::execute {

class LoadedStep {
 public:
  // What the user asked for, on the user's mesh, and what runs. They are equal where devices do not
  // share memory.
  const plan::Plan& plan() const { return plan_; }
  const plan::Plan& run_plan() const { return run_plan_ ? *run_plan_ : plan_; }

  // Those that the program's states are, in their order.
  std::span<const program::Variable> variables() const { return variables_; }

  // `input` and `output` are indices into the plan's; one beyond them ends the program (MT_CHECK).
  // Feeds a whole batch from the host; every input must be fed once before the first Run and keeps
  // its value. Errors: kInvalidArgument naming the input, for a tensor of another type, or on the
  // mesh of another layout.
  Status Feed(size_t input, const Tensor& value);
  // Of the first dimension of what Feed takes, the range [first, second) that the devices of this
  // process need: what stands elsewhere is not looked at.
  std::pair<int64_t, int64_t> FedRows(size_t input) const;
  // Feeds a tensor on the mesh, of this step's session, without a copy when its layout is the
  // input's.
  Status Feed(size_t input, const DTensor& value);
  // Errors: kFailedPrecondition naming an input that was never fed, or a variable that has no value
  // any more, or one in another layout than the step was loaded for; kUnavailable and
  // kDeadlineExceeded of collectives with other processes; kAborted for a bad step, in which a
  // guarded output (plan::Options::finite_outputs) or a watched value (SessionOptions) is not
  // finite. A bad step is one in every process and leaves the variables as they were. It is run
  // once more to say where it began: "output `loss` is not finite; first not finite: log (logits)
  // at model.cc:31, then in the gradient of `hidden_1.kernel`; no variable was changed".
  Status Run();
  // Where the step that was fed gives something that is not finite, with the variables as they are
  // now: "log (logits) at model.cc:31". Compiles and runs it anew; called as Run is, by every
  // process. Errors: kNotFound where all is finite; those of Session::Load and Run.
  Result<std::string> FirstNotFinite();
  // Of the program; plan() may have one more (sharding::kGuardOutput).
  size_t num_outputs() const { return program_.outputs.size(); }
  // Output values of the last Run, gathered on the host. Of a one-element output, the number; of
  // another FetchNumber is kInvalidArgument.
  Result<Tensor> Fetch(size_t output) const;
  Result<double> FetchNumber(size_t output) const;
  // Output value as it lies on the mesh, in bytes of its own.
  Result<DTensor> FetchOnMesh(size_t output) const;

  // Bytes that each device sent in collectives since the step was loaded.
  int64_t CollectiveBytesSent(int64_t rank) const;
  int64_t CollectiveBytesSent() const;  // by all devices of this process together
  // What its kernels need on each device that runs, beside the plan's memory; as far as it is
  // known.
  int64_t scratch_bytes() const { return executable_->scratch_bytes(); }
  int64_t runs() const { return runs_; }
  // Equal in all processes that may run this together: what their frames carry. Of a replica's step
  // the hash of its collectives, else the plan's that runs.
  uint64_t communicator_hash() const { return communicator_hash_; }
  // How long the last Run stood in, or waited for, collectives with other processes.
  Duration waited() const { return executable_->waited(); }

 private:
  friend class Function;
  friend class Session;
  LoadedStep(Session* session, const program::Program& program,
             std::span<const program::Variable> variables, bool replica)
      : session_(session),
        program_(program),
        variables_(variables.begin(), variables.end()),
        replica_(replica) {}
  // Takes the values that the variables have now: one that was forgotten and declared anew has
  // other bytes.
  Status UseVariables();
  // Run, where every input is fed and nothing has come between UseVariables and it.
  Status RunOnThem();

  Session* session_;
  program::Program program_;  // as it was loaded
  std::vector<program::Variable> variables_;
  bool replica_;  // made by LoadReplica
  plan::Plan plan_;
  std::optional<plan::Plan> run_plan_;
  std::unique_ptr<collective::Communicator> communicator_;
  std::unique_ptr<device::Executable> executable_;
  std::vector<DTensor> inputs_;
  std::vector<DTensor> lent_;    // inputs fed without a copy, kept alive
  std::vector<DTensor> states_;  // what the last Run used, or what the step was loaded with
  std::vector<DTensor> outputs_;
  std::shared_ptr<const void> counted_;  // as long as it lives, the session counts our bytes
  std::vector<device::DeviceBuffers> devices_;
  std::vector<bool> fed_;
  int64_t runs_ = 0;
  uint64_t communicator_hash_ = 0;
};

}  // namespace meshtrain::execute
