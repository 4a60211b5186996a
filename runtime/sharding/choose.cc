#include "runtime/sharding/choose.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/program/builder.h"
#include "runtime/program/registry.h"
#include "runtime/sharding/solve.h"

namespace meshtrain::sharding {
namespace {

// Layouts tried in one climb: some seconds for a program of a thousand ops.
constexpr int kMostTried = 2000;
// A change has to pay by more than the prediction is worth.
constexpr double kWorthwhile = 0.999;
constexpr double kImpossible = std::numeric_limits<double>::infinity();

using Dims = std::vector<mesh::DimSharding>;  // axes of each dimension

struct Group {
  const StateGroup* names;
  program::TensorType type;
  ValueId entry;  // of the first of them
  Dims dims;
};

// One group's next layout.
struct Change {
  size_t group;
  Dims dims;
  int axis = -1;  // that splits a dimension further; -1: a dimension becomes whole
};

// What one change may make of a group: an axis that it does not use yet splits a dimension further,
// or a dimension becomes whole.
std::vector<Change> Neighbours(const std::vector<Group>& groups, size_t index, const Mesh& mesh,
                               bool refuse_uneven) {
  const Group& group = groups[index];
  std::vector<Change> found;
  const auto uses = [&](int axis) {
    return std::any_of(group.dims.begin(), group.dims.end(), [&](const auto& axes) {
      return std::find(axes.begin(), axes.end(), axis) != axes.end();
    });
  };
  for (size_t d = 0; d < group.dims.size(); ++d) {
    int64_t parts = 1;
    for (const int axis : group.dims[d]) parts *= mesh.axis(axis).size;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      const int64_t size = mesh.axis(axis).size;
      const int64_t extent = group.type.dims[d];
      if (size == 1 || uses(axis) || extent < parts * size) continue;
      if (refuse_uneven && extent % (parts * size) != 0) continue;
      found.push_back({index, group.dims, axis});
      found.back().dims[d].push_back(axis);
    }
    if (!group.dims[d].empty()) {
      found.push_back({index, group.dims});
      found.back().dims[d].clear();
    }
  }
  return found;
}

// What a step of the program takes under layouts that are put one after another. What does not
// depend on them is worked out once.
class Search {
 public:
  static Result<std::unique_ptr<Search>> Create(const Program& program, const Mesh& mesh,
                                                Given given, const Options& options) {
    MT_ASSIGN_OR_RETURN(Problem problem, MakeProblem(program, mesh, options));
    return std::unique_ptr<Search>(
        new Search(program, mesh, std::move(given), options, std::move(problem)));
  }

  // Puts `dims` on the group's states.
  Status Put(const Group& group, const Dims& dims) {
    MT_ASSIGN_OR_RETURN(const Layout layout, Layout::Create(mesh_, dims));
    for (const std::string& name : *group.names) given_.states.insert_or_assign(name, layout);
    return OkStatus();
  }

  Status PutAll(const std::vector<Group>& groups) {
    for (const Group& group : groups) MT_RETURN_IF_ERROR(Put(group, group.dims));
    return OkStatus();
  }

  // The change, and those of other groups that it leads to: where its axis goes when they may take
  // it from their neighbours. So a weight whose columns are split takes the rows of the one behind
  // it along.
  Result<std::vector<Change>> WithFollowers(const std::vector<Group>& groups,
                                            const Change& change) {
    std::set<std::string> follow;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (g != change.group) follow.insert(groups[g].names->begin(), groups[g].names->end());
    }
    Problem& problem = first_.problem;
    MT_RETURN_IF_ERROR(Put(groups[change.group], change.dims));
    MT_RETURN_IF_ERROR(GiveHints(problem, given_, options_, &follow));
    std::vector<Change> changes = {change};
    for (size_t g = 0; g < groups.size(); ++g) {
      const int8_t dim = problem.hints[groups[g].entry].at[change.axis];
      if (g == change.group || dim < 0) continue;
      const mesh::DimSharding& had = groups[g].dims[dim];
      if (std::find(had.begin(), had.end(), change.axis) != had.end()) continue;
      changes.push_back({g, groups[g].dims, change.axis});
      changes.back().dims[dim].push_back(change.axis);
    }
    return changes;
  }

  // Of a step with the states as they are put, as the solver sees it; infinite where they do not
  // fit.
  double Estimate() {
    ++tried_;
    const Result<double> seconds = SolvedSeconds();
    return seconds.ok() && *seconds < kRefused ? *seconds : kImpossible;
  }
  // Of the partitioned step.
  Result<Spent> Spends() const {
    MT_ASSIGN_OR_RETURN(const Partitioned partitioned, Shard(program_, mesh_, given_, options_));
    return PredictSpent(partitioned, options_.cost);
  }
  bool over() const { return tried_ >= kMostTried; }
  void Begin() { tried_ = 0; }
  const Program& program() const { return program_; }
  const Given& given() const { return given_; }

 private:
  // A program, and what it becomes where these of its ops are expanded.
  struct Stage {
    std::unique_ptr<const Program> own;  // null of the first one
    Problem problem;
    std::map<std::vector<bool>, Stage> expanded;
  };

  Search(const Program& program, const Mesh& mesh, Given given, const Options& options,
         Problem problem)
      : program_(program),
        mesh_(mesh),
        given_(std::move(given)),
        options_(options),
        first_{nullptr, std::move(problem), {}} {}

  Result<double> SolvedSeconds() {
    Stage* stage = &first_;
    for (;;) {
      MT_RETURN_IF_ERROR(GiveHints(stage->problem, given_, options_));
      std::vector<bool> chosen = ToExpand(stage->problem);
      if (chosen.empty()) return Solve(stage->problem).seconds;
      auto next = stage->expanded.find(chosen);
      if (next == stage->expanded.end()) {
        MT_ASSIGN_OR_RETURN(Program expanded,
                            program::Builder::Expanded(*stage->problem.program, chosen));
        auto own = std::make_unique<const Program>(std::move(expanded));
        MT_ASSIGN_OR_RETURN(Problem problem, MakeProblem(*own, mesh_, options_));
        problem.reshard = first_.problem.reshard;
        Stage made{std::move(own), std::move(problem), {}};
        next = stage->expanded.emplace(std::move(chosen), std::move(made)).first;
      }
      stage = &next->second;
    }
  }

  const Program& program_;
  const Mesh& mesh_;
  Given given_;
  const Options& options_;
  Stage first_;
  int tried_ = 0;
};

// What a change may cost.
enum class Pay : uint8_t {
  kAnything,  // that is worth its time
  kNothing,   // neither bytes on the links nor operations
};

// What stands now, and what it takes.
struct Standing {
  std::vector<Group> groups;
  double estimate = kImpossible;
  Spent spent = {.seconds = kImpossible};
  Spent at_first = {.sent_bytes = kImpossible};  // where the climb began
};

// Makes the best change of one group, alone or with those that follow it, if one pays.
Result<bool> Improve(Search& search, Standing& now, size_t index, const Mesh& mesh,
                     bool refuse_uneven, Pay pay) {
  struct Tried {
    double estimate;
    std::vector<Change> changes;
  };
  std::vector<Tried> better;
  const auto put = [&](const std::vector<Change>& changes, bool back) -> Status {
    for (const Change& c : changes) {
      const Group& group = now.groups[c.group];
      MT_RETURN_IF_ERROR(search.Put(group, back ? group.dims : c.dims));
    }
    return OkStatus();
  };
  const auto attempt = [&](std::vector<Change> changes) -> Status {
    MT_RETURN_IF_ERROR(put(changes, false));
    const double estimate = search.Estimate();
    MT_RETURN_IF_ERROR(put(changes, true));
    if (estimate < now.estimate * kWorthwhile) better.push_back({estimate, std::move(changes)});
    return OkStatus();
  };
  for (const Change& change : Neighbours(now.groups, index, mesh, refuse_uneven)) {
    if (search.over()) break;
    MT_RETURN_IF_ERROR(attempt({change}));
    if (change.axis < 0) continue;
    MT_ASSIGN_OR_RETURN(std::vector<Change> all, search.WithFollowers(now.groups, change));
    MT_RETURN_IF_ERROR(search.Put(now.groups[index], now.groups[index].dims));
    if (all.size() > 1) MT_RETURN_IF_ERROR(attempt(std::move(all)));
  }
  std::stable_sort(better.begin(), better.end(),
                   [](const Tried& a, const Tried& b) { return a.estimate < b.estimate; });
  for (Tried& tried : better) {
    MT_RETURN_IF_ERROR(put(tried.changes, false));
    const Result<Spent> real = search.Spends();
    if (!real.ok() || real->seconds >= now.spent.seconds * kWorthwhile ||
        (pay == Pay::kNothing &&
         (real->sent_bytes > now.spent.sent_bytes || real->flops > now.spent.flops))) {
      MT_RETURN_IF_ERROR(put(tried.changes, true));
      continue;
    }
    now.estimate = tried.estimate;
    now.spent = *real;
    for (Change& c : tried.changes) now.groups[c.group].dims = std::move(c.dims);
    return true;
  }
  return false;
}

// Begins with `groups` as they are, and improves one after another until nothing does; what stands
// takes kImpossible seconds where none of it fits. Errors: why the beginning does not.
Status Climb(Search& search, Standing& now, const Mesh& mesh, bool refuse_uneven, Pay pay) {
  search.Begin();
  MT_RETURN_IF_ERROR(search.PutAll(now.groups));
  const Result<Spent> beginning = search.Spends();
  if (beginning.ok()) {
    now.estimate = search.Estimate();
    now.spent = now.at_first = *beginning;
  }
  for (bool changed = true; changed && !search.over();) {
    changed = false;
    for (size_t g = 0; g < now.groups.size(); ++g) {
      MT_ASSIGN_OR_RETURN(const bool improved, Improve(search, now, g, mesh, refuse_uneven, pay));
      changed = changed || improved;
    }
  }
  return now.spent.seconds == kImpossible ? beginning.status() : OkStatus();
}

// For each value the first product that it is multiplied in, as it is, cast or with its elements in
// other dimensions; ops.size() where there is none.
std::vector<size_t> FirstProducts(const Program& program) {
  std::vector<size_t> first(program.values.size(), program.ops.size());
  for (size_t i = program.ops.size(); i-- > 0;) {
    const program::Op& op = program.ops[i];
    if (op.kind == "matmul" || op.kind == "conv") {
      for (const ValueId v : op.operands) first[v] = i;
    } else if (op.kind == "cast" || op.kind == "reshape" || op.kind == "transpose") {
      first[op.operands[0]] = std::min(first[op.operands[0]], first[op.results[0]]);
    }
  }
  return first;
}

// Columns and rows in turn, as people choose them by hand (Megatron-LM, Shoeybi et al. 2019): each
// axis that no input uses splits the columns of the first weight that is multiplied, and of
// whatever follows the dimension where it comes to; then those of the next weight that it has not
// come to.
Status SplitInTurn(Search& search, std::vector<Group>& groups, const Mesh& mesh,
                   bool refuse_uneven) {
  const std::vector<size_t> products = FirstProducts(search.program());
  std::vector<size_t> order;
  for (size_t g = 0; g < groups.size(); ++g) {
    const bool multiplied = products[groups[g].entry] < search.program().ops.size();
    if (multiplied && groups[g].dims.size() > 1) order.push_back(g);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return products[groups[a].entry] < products[groups[b].entry];
  });
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const auto& inputs = search.given().inputs;
    const bool used = std::any_of(inputs.begin(), inputs.end(),
                                  [&](const auto& input) { return input.second.Uses(axis); });
    if (used) continue;
    for (const size_t g : order) {
      for (const Change& change : Neighbours(groups, g, mesh, refuse_uneven)) {
        if (change.axis != axis || change.dims.back().size() == groups[g].dims.back().size()) {
          continue;
        }
        MT_ASSIGN_OR_RETURN(const std::vector<Change> all, search.WithFollowers(groups, change));
        for (const Change& c : all) {
          groups[c.group].dims = c.dims;
          MT_RETURN_IF_ERROR(search.Put(groups[c.group], c.dims));
        }
      }
    }
  }
  return OkStatus();
}

}  // namespace

Spent PredictSpent(const Partitioned& partitioned, const CostModel& cost) {
  const program::Registry& registry = program::Registry::Standard();
  Spent all;
  std::vector<program::TensorType> operands, results;
  for (const program::Op& op : partitioned.local.ops) {
    const program::OpDef* def = registry.Find(op.kind);
    MT_CHECK(def != nullptr);
    if (def->collective) continue;
    operands.clear();
    results.clear();
    for (const ValueId v : op.operands) operands.push_back(partitioned.local.type(v));
    for (const ValueId v : op.results) results.push_back(partitioned.local.type(v));
    const program::Cost spent = program::CostOf(*def, {operands, op.attrs}, results);
    all.flops += spent.flops;
    all.seconds += spent.flops / cost.flops_per_second + spent.bytes / cost.memory_bytes_per_second;
  }
  for (const Reshard& reshard : partitioned.reshards) {
    all.sent_bytes += static_cast<double>(reshard.bytes_per_device);
    all.seconds += reshard.predicted_seconds;
  }
  return all;
}

Result<std::map<std::string, Layout>> ChooseStateLayouts(const Program& program, const Mesh& mesh,
                                                         Given given,
                                                         std::span<const StateGroup> open,
                                                         const Options& options) {
  Standing now;
  for (const StateGroup& names : open) {
    for (const std::string& name : names) {
      const auto state = std::find_if(program.states.begin(), program.states.end(),
                                      [&](const program::State& s) { return s.name == name; });
      if (state == program.states.end()) {
        return InvalidArgument("layouts: expected a state of the program, got: `" + name + "`");
      }
      const program::TensorType& type = program.type(state->entry);
      if (&name == &names.front()) {
        now.groups.push_back({&names, type, state->entry, Dims(type.dims.size())});
      } else if (type.dims != now.groups.back().type.dims) {
        return InvalidArgument("layouts: `" + name + "`: expected the dimensions of `" +
                               names.front() + "`, " + now.groups.back().type.ToString() +
                               ", got: " + type.ToString());
      }
    }
  }
  std::stable_sort(now.groups.begin(), now.groups.end(), [](const Group& a, const Group& b) {
    return a.type.num_bytes() > b.type.num_bytes();
  });

  MT_ASSIGN_OR_RETURN(const auto search, Search::Create(program, mesh, std::move(given), options));
  MT_RETURN_IF_ERROR(search->PutAll(now.groups));
  Standing in_turn{now.groups};
  Status from_turns = SplitInTurn(*search, in_turn.groups, mesh, options.refuse_uneven);

  const Status from_replicated = Climb(*search, now, mesh, options.refuse_uneven, Pay::kAnything);
  if (from_turns.ok()) {
    from_turns = Climb(*search, in_turn, mesh, options.refuse_uneven, Pay::kNothing);
  }
  if (!from_replicated.ok() && !from_turns.ok()) return from_replicated;
  const bool sends_more = now.spent.sent_bytes > in_turn.at_first.sent_bytes;
  if (from_turns.ok() && (sends_more || in_turn.spent.seconds < now.spent.seconds)) {
    now = std::move(in_turn);
  }

  std::map<std::string, Layout> chosen;
  for (const Group& group : now.groups) {
    MT_ASSIGN_OR_RETURN(const Layout layout, Layout::Create(mesh, group.dims));
    for (const std::string& name : *group.names) chosen.insert_or_assign(name, layout);
  }
  return chosen;
}

}  // namespace meshtrain::sharding
