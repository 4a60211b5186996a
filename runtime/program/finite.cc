#include "runtime/program/finite.h"

#include <algorithm>
#include <limits>

#include "runtime/program/builder.h"
#include "runtime/program/registry.h"

namespace meshtrain::program {
namespace {

// Appends ops to a finished program.
class Appender {
 public:
  explicit Appender(Program* program) : program_(program) {}

  Result<ValueId> Append(std::string kind, std::vector<ValueId> operands, Attrs attrs = {}) {
    MT_ASSIGN_OR_RETURN(const OpDef* def, Registry::Standard().Get(kind));
    std::vector<TensorType> types;
    for (const ValueId v : operands) types.push_back(program_->type(v));
    MT_ASSIGN_OR_RETURN(std::vector<TensorType> results, def->infer({types, attrs}));
    const auto index = static_cast<int32_t>(program_->ops.size());
    const auto id = static_cast<ValueId>(program_->values.size());
    program_->values.push_back({results[0], index});
    program_->ops.push_back({std::move(kind), std::move(attrs), std::move(operands), {id}, "", {}});
    return id;
  }

  // How many elements of `value` are not finite; of one that `summands` replicas add up, how many
  // are so large that the sum may not be.
  Result<ValueId> Count(ValueId value, int64_t summands) {
    double limit = mesh::LargestFinite(program_->type(value).dtype);
    if (summands > 1) limit /= 2 * static_cast<double>(summands);
    return Append("count_beyond", {value}, {{"limit", limit}});
  }

  Result<ValueId> SumOver(int64_t replicas, ValueId value) {
    if (replicas == 1) return value;
    return Append("all_reduce", {value},
                  {{"axes", std::vector<int64_t>{0}},
                   {"group", replicas},
                   {"reduction", std::string("sum")}});
  }

 private:
  Program* program_;
};

std::string PlaceOf(const Op& op) {
  std::string text = op.kind;
  if (!op.path.empty()) text += " (" + op.path + ")";
  if (const std::string line = op.where.ToString(); !line.empty()) text += " at " + line;
  return text;
}

}  // namespace

std::vector<Port> WatchedForUpdates(const Program& program) {
  std::vector<bool> updates(program.values.size(), false);  // values on which an update depends
  for (const State& s : program.states) {
    if (s.exit != s.entry) updates[s.exit] = true;
  }
  for (size_t i = program.ops.size(); i-- > 0;) {
    const Op& op = program.ops[i];
    if (std::none_of(op.results.begin(), op.results.end(), [&](ValueId v) { return updates[v]; })) {
      continue;
    }
    for (const ValueId v : op.operands) updates[v] = true;
  }
  const auto guards = [&](const Port& p) { return static_cast<bool>(updates[p.value]); };
  if (std::none_of(program.watched.begin(), program.watched.end(), guards)) return {};
  std::vector<Port> watched;
  for (const Port& p : program.watched) {
    if (guards(p) || p.name == kWatchedLoss) watched.push_back(p);
  }
  return watched;
}

Result<Program> WithGuard(const Program& original, int64_t replicas, const std::string& output) {
  Program program = original;
  Appender appender(&program);
  ValueId total = kNoValue;
  for (const Port& p : WatchedForUpdates(original)) {
    MT_ASSIGN_OR_RETURN(const ValueId count, appender.Count(p.value, replicas));
    if (total < 0) {
      total = count;
    } else {
      MT_ASSIGN_OR_RETURN(total, appender.Append("add", {total, count}));
    }
  }
  if (total < 0) return program;
  MT_ASSIGN_OR_RETURN(total, appender.SumOver(replicas, total));
  program.outputs.push_back({output, total});
  MT_RETURN_IF_ERROR(Validate(program));
  return program;
}

Result<FiniteCheck> WithFiniteChecks(const Program& original, int64_t replicas) {
  FiniteCheck check{original, {}};
  Program& program = check.program;
  program.name += "_finite_check";
  program.outputs.clear();
  program.watched.clear();
  for (State& s : program.states) s.exit = s.entry;

  std::vector<Port> places;
  for (const Port& p : original.inputs) places.push_back({"input " + p.name, p.value});
  for (const State& s : original.states) places.push_back({"state " + s.name, s.entry});
  for (const Op& op : original.ops) {
    for (const ValueId v : op.results) places.push_back({PlaceOf(op), v});
  }
  Appender appender(&program);
  const auto add = [&](const Port& place, int64_t summands) -> Status {
    const TensorType type = program.type(place.value);
    if (!mesh::IsFloat(type.dtype) || type.num_elements() == 0) return OkStatus();
    MT_ASSIGN_OR_RETURN(ValueId count, appender.Count(place.value, summands));
    MT_ASSIGN_OR_RETURN(count, appender.SumOver(replicas, count));
    program.outputs.push_back({"count_" + std::to_string(check.places.size()), count});
    check.places.push_back(place.name);
    return OkStatus();
  };
  for (const Port& place : places) MT_RETURN_IF_ERROR(add(place, 1));
  check.watched = check.places.size();
  for (const Port& place : WatchedForUpdates(original)) MT_RETURN_IF_ERROR(add(place, replicas));
  MT_RETURN_IF_ERROR(Validate(program));
  return check;
}

std::string FiniteCheck::Explain(std::span<const double> counts) const {
  const auto first = [&](size_t from, size_t to) {
    while (from < to && !(counts[from] > 0)) ++from;
    return from;
  };
  const size_t end = std::min(places.size(), counts.size());
  const size_t op = first(0, std::min(watched, end));
  // A gradient says more than the loss that it is of.
  size_t seen = first(watched, end);
  if (seen < end && places[seen] == kWatchedLoss) {
    if (const size_t gradient = first(seen + 1, end); gradient < end) seen = gradient;
  }
  std::string text = op < std::min(watched, end) ? places[op] : "";
  if (seen == end) return text;
  if (text.empty()) return places[seen] + ", of which a sum over the replicas may overflow";
  return text + ", then in " + places[seen];
}

}  // namespace meshtrain::program
