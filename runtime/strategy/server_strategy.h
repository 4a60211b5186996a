// The chief's strategy of parameter servers: variables lie on the servers, steps run on the
// workers, each in its own time.
//
//   MT_ASSIGN_OR_RETURN(auto options, parameter::OptionsFromEnvironment());  // TF_CONFIG
//   MT_ASSIGN_OR_RETURN(auto strategy, Strategy::ParameterServer({.coordinator = options}));
//   auto scope = strategy->Scope();
//   Model model(...);  // Compile, Fit, Evaluate, Predict, as under every strategy
//   ...
//   strategy->coordinator().End();  // the job is done: servers and workers may go
//
// Batches are read here and sent with their steps; an epoch's steps have all ended when the epoch
// does, so what is validated and saved then is the work of exactly those steps. There are no
// replicas that go together, so it has no Run, Reduce and distributed datasets. A loop of one's own
// schedules its steps: strategy->coordinator().Schedule.
//
// Kept true: a variable is on the servers from its first use, under its path, and begins with what
// was assigned or restored before, else with its initial value. What was restored and that
// nothing took yet is kept for the first variable of its path that comes to be, an optimizer's slot
// too. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "runtime/base/status.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/nn/parameter.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/strategy/strategy.h"

namespace meshtrain::strategy {

struct ParameterServerOptions {
  // Its cluster and identity are OptionsFromEnvironment's; its steps_in_flight is set by the next.
  parameter::CoordinatorOptions coordinator;
  // Steps that run at once, in the whole job. 1: each begins with what the one before it left, as
  // in a single process. 0: one for each worker.
  int64_t steps_in_flight = 0;
};

class ServerStrategy final : public Strategy {
 public:
  ~ServerStrategy() override;

  // Schedules steps, says who is there, ends the job.
  parameter::Coordinator& coordinator() { return *coordinator_; }
  int64_t ahead() const { return ahead_; }  // steps to schedule (parameter::InFlight)

  // Puts those on the servers that are not there. Errors: kFailedPrecondition for a variable of
  // another scope, kAlreadyExists for a second one of a path; the servers'.
  Status PutOnServers(std::span<const program::Variable> variables);
  // Gives those that the coordinator has made by itself what was assigned or restored. `renewed`:
  // slots, as their servers hold them, that begin with their initial value again where they have
  // one.
  Status GiveNew(std::span<const nn::Parameter> renewed = {});

  Result<mesh::Tensor> Read(const program::Variable& variable) override;
  Status Assign(const program::Variable& variable, const mesh::Tensor& value) override;
  Result<std::string> Save(const std::string& folder, int64_t step,
                           std::span<const program::Variable> variables = {}) override;

 private:
  friend class Strategy;
  ServerStrategy(std::string name, std::unique_ptr<parameter::Coordinator> coordinator,
                 int64_t ahead);
  void Hold(const nn::Parameter& parameter) override;
  // Values by path, for variables there are and those that come to be. Errors: kInvalidArgument
  // (type) and kDataLoss, before anything is written; the servers'.
  Status Give(std::unique_ptr<checkpoint::Checkpoint> from) override;
  Result<nn::Parameter> Find(const program::Variable& variable) const;
  bool OnServers(const nn::Parameter& parameter) const;
  // Writes what was restored under this name and that nothing took yet. Errors: kInvalidArgument
  // (type).
  Status GiveRestored(const std::string& name, const mesh::TensorType& type);

  std::unique_ptr<parameter::Coordinator> coordinator_;
  const int64_t ahead_;
  std::map<const void*, nn::Parameter> by_key_;   // Unheld
  std::map<std::string, mesh::Tensor> assigned_;  // before they were on the servers
  std::set<std::string> begun_;                   // states of the servers, by their paths
  std::unique_ptr<checkpoint::Checkpoint> given_;
  std::set<std::string> waiting_;  // of given_, what no state has taken
};

}  // namespace meshtrain::strategy
