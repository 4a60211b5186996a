#include "runtime/sharding/choose.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "runtime/base/check.h"
#include "runtime/program/registry.h"

namespace meshtrain::sharding {
namespace {

// Plans made for one answer: some seconds for a program of a thousand ops.
constexpr int kMostTried = 600;
// A change has to pay by more than the prediction is worth.
constexpr double kWorthwhile = 0.999;

struct Group {
  const StateGroup* names;
  program::TensorType type;
  std::vector<mesh::DimSharding> dims;  // axes of each dimension
};

// What one change may make of a group: an axis that it does not use yet splits a dimension further,
// or a dimension becomes whole.
std::vector<std::vector<mesh::DimSharding>> Neighbours(const Group& group, const Mesh& mesh,
                                                       bool refuse_uneven) {
  std::vector<std::vector<mesh::DimSharding>> found;
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
      found.push_back(group.dims);
      found.back()[d].push_back(axis);
    }
    if (!group.dims[d].empty()) {
      found.push_back(group.dims);
      found.back()[d].clear();
    }
  }
  return found;
}

class Search {
 public:
  Search(const Program& program, const Mesh& mesh, Given given, const Options& options)
      : program_(program), mesh_(mesh), given_(std::move(given)), options_(options) {}

  // Puts `dims` on the group's states.
  Status Put(const Group& group, const std::vector<mesh::DimSharding>& dims) {
    MT_ASSIGN_OR_RETURN(const Layout layout, Layout::Create(mesh_, dims));
    for (const std::string& name : *group.names) given_.states.insert_or_assign(name, layout);
    return OkStatus();
  }
  // Of a step with the states as they are put.
  Result<double> Seconds() {
    ++tried_;
    MT_ASSIGN_OR_RETURN(const Partitioned partitioned, Shard(program_, mesh_, given_, options_));
    return PredictSeconds(partitioned, options_.cost);
  }
  bool over() const { return tried_ >= kMostTried; }
  const Given& given() const { return given_; }

 private:
  const Program& program_;
  const Mesh& mesh_;
  Given given_;
  const Options& options_;
  int tried_ = 0;
};

}  // namespace

double PredictSeconds(const Partitioned& partitioned, const CostModel& cost) {
  const program::Registry& registry = program::Registry::Standard();
  double seconds = 0;
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
    seconds += spent.flops / cost.flops_per_second + spent.bytes / cost.memory_bytes_per_second;
  }
  for (const Reshard& reshard : partitioned.reshards) seconds += reshard.predicted_seconds;
  return seconds;
}

Result<std::map<std::string, Layout>> ChooseStateLayouts(const Program& program, const Mesh& mesh,
                                                         Given given,
                                                         std::span<const StateGroup> open,
                                                         const Options& options) {
  std::vector<Group> groups;
  for (const StateGroup& names : open) {
    for (const std::string& name : names) {
      const auto state = std::find_if(program.states.begin(), program.states.end(),
                                      [&](const program::State& s) { return s.name == name; });
      if (state == program.states.end()) {
        return InvalidArgument("layouts: expected a state of the program, got: `" + name + "`");
      }
      const program::TensorType& type = program.type(state->entry);
      if (&name == &names.front()) {
        groups.push_back({&names, type, std::vector<mesh::DimSharding>(type.dims.size())});
      } else if (type.dims != groups.back().type.dims) {
        return InvalidArgument("layouts: `" + name + "`: expected the dimensions of `" +
                               names.front() + "`, " + groups.back().type.ToString() +
                               ", got: " + type.ToString());
      }
    }
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    return a.type.num_bytes() > b.type.num_bytes();
  });

  Search search(program, mesh, std::move(given), options);
  for (const Group& group : groups) MT_RETURN_IF_ERROR(search.Put(group, group.dims));
  const Result<double> replicated = search.Seconds();
  double best = replicated.ok() ? *replicated : std::numeric_limits<double>::infinity();
  for (bool changed = true; changed && !search.over();) {
    changed = false;
    for (Group& group : groups) {
      std::optional<std::vector<mesh::DimSharding>> better;
      for (const auto& dims : Neighbours(group, mesh, options.refuse_uneven)) {
        if (search.over()) break;
        MT_RETURN_IF_ERROR(search.Put(group, dims));
        const Result<double> seconds = search.Seconds();
        if (!seconds.ok() || *seconds >= best * kWorthwhile) continue;
        best = *seconds;
        better = dims;
      }
      if (better) {
        group.dims = *better;
        changed = true;
      }
      MT_RETURN_IF_ERROR(search.Put(group, group.dims));
    }
  }
  if (best == std::numeric_limits<double>::infinity()) return replicated.status();

  std::map<std::string, Layout> chosen;
  for (const Group& group : groups) {
    for (const std::string& name : *group.names) {
      chosen.insert_or_assign(name, search.given().states.at(name));
    }
  }
  return chosen;
}

}  // namespace meshtrain::sharding
