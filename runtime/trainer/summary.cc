// Model::Summary: a table of layers, one of weights, and what a device holds.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/text.h"
#include "runtime/plan/plan.h"
#include "runtime/program/parts.h"
#include "runtime/train/programs.h"
#include "runtime/trainer/engine.h"
#include "runtime/trainer/model.h"

namespace meshtrain::trainer {
namespace {

using Rows = std::vector<std::vector<std::string>>;

// Columns side by side, the last one as it is.
std::string Table(const Rows& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const size_t gap = i + 1 == row.size() ? 0 : widths[i] - row[i].size() + 2;
      text += row[i] + std::string(gap, ' ');
    }
    text += "\n";
  }
  return text;
}

bool Owns(const std::string& layer, const std::string& weight) {
  return weight.size() > layer.size() && weight.starts_with(layer) && weight[layer.size()] == '.';
}

// A row for each layer that computes something when it is not trained: what it gives last, and how
// many parameters stand below it and below no layer that is deeper.
Rows LayerRows(const train::Programs& programs) {
  const program::Program& program = programs.eval_step;
  std::vector<std::pair<std::string, std::string>> layers;  // path, output
  for (const program::Op& op : program.ops) {
    if (program::PartOf(op) > 1) continue;  // as the first part
    const std::string path(program::BelowPart(op));
    if (path.empty() || op.results.empty()) continue;
    auto known = std::find_if(layers.begin(), layers.end(),
                              [&](const auto& layer) { return layer.first == path; });
    if (known == layers.end()) known = layers.insert(known, {path, ""});
    known->second = program.type(op.results[0]).ToString();
  }
  std::vector<int64_t> counts(layers.size(), 0);
  for (const nn::Parameter& p : programs.parameters) {
    size_t owner = layers.size();
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::string& path = layers[i].first;
      if (!Owns(path, p.name())) continue;
      if (owner == layers.size() || path.size() > layers[owner].first.size()) owner = i;
    }
    if (owner < layers.size()) counts[owner] += p.type().num_elements();
  }
  Rows rows = {{"layer", "output", "parameters"}};
  for (size_t i = 0; i < layers.size(); ++i) {
    rows.push_back({layers[i].first, layers[i].second, std::to_string(counts[i])});
  }
  return rows;
}

// A row for each weight: its type, its layout, and the bytes that a device holds of it.
Rows WeightRows(const train::Programs& programs, const plan::Plan& plan) {
  const sharding::Partitioned& p = plan.partitioned;
  Rows rows = {{"weight", "type", "layout", "a device"}};
  for (size_t i = 0; i < plan.local().states.size(); ++i) {
    const std::string& name = plan.local().states[i].name;
    const bool weight =
        std::any_of(programs.parameters.begin(), programs.parameters.end(),
                    [&](const nn::Parameter& parameter) { return parameter.name() == name; });
    if (!weight) continue;
    const auto local = p.state_layouts[i].LocalShape(p.state_types[i].dims);
    const mesh::TensorType shard{p.state_types[i].dtype, local.ok() ? *local : mesh::Dims()};
    rows.push_back({name, p.state_types[i].ToString(), p.state_layouts[i].ToString(),
                    HumanBytes(shard.num_bytes())});
  }
  return rows;
}

}  // namespace

Result<std::string> Model::Summary() const {
  const train::Programs* const programs = engine_->programs();
  const plan::Plan* const plan = engine_->plan();
  if (programs == nullptr || plan == nullptr) {
    return FailedPrecondition(
        "summary: expected a model that has seen a batch (Fit or Evaluate), and not on parameter "
        "servers");
  }
  int64_t trained = 0, kept = 0;
  for (const nn::Parameter& p : programs->parameters) {
    (p.trainable() ? trained : kept) += p.type().num_elements();
  }
  const mesh::Mesh& mesh = plan->partitioned.mesh;
  const int64_t scratch = engine_->scratch_bytes();
  return Table(LayerRows(*programs)) + Table(WeightRows(*programs, *plan)) +
         std::to_string(trained + kept) + " parameters, of which " + std::to_string(trained) +
         " are trained\n" + "mesh " + (mesh.num_axes() == 0 ? "(one device)" : mesh.ToString()) +
         ": a training step holds at most " + HumanBytes(plan->peak_bytes + scratch) +
         " a device: states " + HumanBytes(plan->state_bytes) + ", inputs " +
         HumanBytes(plan->input_bytes) + ", outputs " + HumanBytes(plan->output_bytes) +
         ", arena " + HumanBytes(plan->arena_bytes) + ", kernels' scratch " + HumanBytes(scratch) +
         "\n";
}

}  // namespace meshtrain::trainer
