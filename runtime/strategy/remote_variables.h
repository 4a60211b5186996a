// The variables of a strategy whose values lie on parameter servers, and the coordinator that
// reaches them.
//
// Kept true: a variable is on the servers from its first use, under its path, and begins with what
// was assigned or restored before, else with its initial value. What was restored is kept for those
// that come to be later, an optimizer's slots too. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>

#include "runtime/base/status.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/nn/parameter.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/strategy/parameter_server.h"

namespace meshtrain::strategy {

class RemoteVariables {
 public:
  // Errors: kInvalidArgument for a number of steps below 0; Coordinator::Create's.
  static Result<std::unique_ptr<RemoteVariables>> Create(ParameterServerOptions options,
                                                         std::stop_token stop);

  parameter::Coordinator& coordinator() { return *coordinator_; }
  int64_t ahead() const { return ahead_; }  // steps to schedule (parameter::InFlight)

  // A parameter was made under the strategy's scope.
  void Add(const nn::Parameter& parameter) { by_key_.emplace(parameter.key(), parameter); }

  // Puts those on the servers that are not there. Errors: kFailedPrecondition for a variable of
  // another scope, kAlreadyExists for a second one of a path; the servers'.
  Status Begin(std::span<const program::Variable> variables);
  // Gives those that the coordinator has made by itself what was assigned or restored. `renewed`:
  // slots, as their servers hold them, that begin anew even where they have a value.
  Status GiveNew(std::span<const nn::Parameter> renewed = {});

  Result<mesh::Tensor> Read(const program::Variable& variable);
  // Errors: also kInvalidArgument (type).
  Status Assign(const program::Variable& variable, const mesh::Tensor& value);

  // Every variable and slot; its folder. `folder` must be one that the servers reach.
  Result<std::string> Save(const std::string& folder, int64_t step);
  // Values by path, for variables there are and those that come to be. Errors: kInvalidArgument
  // (type) and kDataLoss, before anything is written; the servers'.
  Status Give(std::unique_ptr<checkpoint::Checkpoint> from);

 private:
  RemoteVariables(std::unique_ptr<parameter::Coordinator> coordinator, int64_t ahead)
      : coordinator_(std::move(coordinator)), ahead_(ahead) {}
  Result<nn::Parameter> Find(const program::Variable& variable) const;
  bool OnServers(const nn::Parameter& parameter) const;
  // What was restored under this name, if anything was. Errors: kInvalidArgument (type).
  Result<std::optional<mesh::Tensor>> Given(const std::string& name,
                                            const mesh::TensorType& type) const;

  std::unique_ptr<parameter::Coordinator> coordinator_;
  const int64_t ahead_;
  std::map<const void*, nn::Parameter> by_key_;
  std::map<std::string, mesh::Tensor> assigned_;  // before they were on the servers
  std::set<std::string> begun_;                   // states of the servers, by their paths
  std::unique_ptr<checkpoint::Checkpoint> given_;
};

}  // namespace meshtrain::strategy
