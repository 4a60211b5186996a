// A job's variables and steps, laid out over its servers: who is to hold what, and what a worker
// does with it. Grows as the coordinator defines more; pure.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/parameter/messages/messages.h"
#include "runtime/parameter/messages/partitioner.h"
#include "runtime/parameter/messages/split.h"

namespace meshtrain::parameter {

class Planner {
 public:
  // `seed`: of initial values (train::Recipe::seed).
  Planner(Partitioner partitioner, int servers, int64_t seed)
      : partitioner_(partitioner),
        servers_(servers),
        seed_(seed),
        known_(static_cast<size_t>(servers)) {}

  int servers() const { return servers_; }
  const std::vector<Parameter>& variables() const { return variables_; }
  const std::vector<Shard>& shards() const {
    return shards_;
  }  // their `variable` counts in variables()
  // Whether this very variable was added (another one may have its name).
  bool Holds(const Parameter& variable) const;
  // Shards of one variable, in the order of their rows; empty for an unknown one.
  std::vector<Shard> ShardsOf(std::string_view variable) const;
  // Every state of the servers, slots too, by its name in checkpoints; parts in the order of their
  // rows.
  struct Part {
    int server = 0;
    ServerState state;
  };
  const std::map<std::string, std::vector<Part>>& states() const { return states_; }

  // Each returns what every server is to be told, in their order; on an error nothing has changed.
  // Errors: kInvalidArgument; kAlreadyExists for a variable or an update of a name that is taken.
  Result<std::vector<Definition>> AddVariables(std::span<const Parameter> variables);
  Result<std::vector<Definition>> AddUpdate(const std::string& name, std::span<const Pushed> pushed,
                                            const Updater& updater);

  // The worker's half of a step, and which update its pushes go to ("" where it pushes nothing).
  // `finite`: outputs that must be finite. Errors: kInvalidArgument for a state that is no variable
  // here, or of another type, or pushes other than the update's.
  Result<StepFunction> MakeFunction(const WorkerStep& step, const std::string& update,
                                    std::vector<std::string> finite) const;

 private:
  void Remember(const std::vector<std::vector<ServerState>>& made);

  Partitioner partitioner_;
  int servers_;
  int64_t seed_;
  std::vector<Parameter> variables_;
  std::vector<Shard> shards_;
  std::vector<std::set<std::string>> known_;  // names of states, by server
  std::map<std::string, std::vector<Part>> states_;
  std::map<std::string, std::vector<std::vector<PushedRows>>> updates_;  // inputs by server
};

}  // namespace meshtrain::parameter
