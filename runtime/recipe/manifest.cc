// A manifest as the worker and the command line read it: what manifest says, and layout rules
// against the weights that the model will have.
#include <algorithm>
#include <set>

#include "runtime/base/text.h"
#include "runtime/nn/layout_map.h"
#include "runtime/nn/path_rule.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {
namespace {

using manifest::Problems;

constexpr std::string_view kExclusions = "exclude_from_weight_decay";

void CheckRules(Problems& problems, const manifest::Program& program) {
  if (!problems.Clean(program.path + ".model")) return;
  std::vector<std::string> paths;
  std::vector<std::pair<std::string, int>> weights;
  for (const manifest::Layer& layer : program.model.layers) {
    for (auto& weight : manifest::WeightsOf(layer)) {
      paths.push_back(weight.first);
      weights.push_back(std::move(weight));
    }
  }
  nn::LayoutMap map;
  std::vector<const manifest::LayoutRule*> rules;  // behind each of the map's
  for (const manifest::LayoutRule& rule : program.layout.rules) {
    if (!problems.Clean(rule.spot.path + ".match") || !problems.Clean(rule.spot.path + ".spec")) {
      continue;
    }
    if (const Status added = map.Add(rule.match, rule.specs); !added.ok()) {
      problems.Add(rule.spot.place, rule.spot.path, added.message());
    } else {
      rules.push_back(&rule);
    }
  }
  std::set<size_t> told;
  for (const auto& [path, rank] : weights) {
    const auto rule = map.Find(path);
    if (!rule || told.contains(*rule)) continue;
    const Status fits = mesh::CheckRank(map.specs(*rule), path, rank);
    if (fits.ok()) continue;
    told.insert(*rule);
    problems.Add(rules[*rule]->spot.place, rules[*rule]->spot.path, fits.message());
  }
  for (size_t i = 0; i < map.size(); ++i) {
    const Status used = map.CheckUsed(i, paths);
    if (!used.ok()) problems.Add(rules[i]->spot.place, rules[i]->spot.path, used.message());
  }
  for (const std::string& part :
       program.optimizer.options.Texts(kExclusions).value_or(std::vector<std::string>{})) {
    const bool known = std::any_of(paths.begin(), paths.end(), [&](const std::string& path) {
      return path.find(part) != std::string::npos;
    });
    if (known) continue;
    problems.Add(
        program.optimizer.spot.place, program.optimizer.spot.path + "." + std::string(kExclusions),
        "expected parts of the weights' paths, got: `" + Excerpt(part) + "`, which none contains");
  }
}

void CheckRecomputed(Problems& problems, const manifest::Program& program) {
  const std::string path = program.path + ".train.recompute";
  if (program.train.recompute.empty() || !problems.Clean(path) ||
      !problems.Clean(program.path + ".model")) {
    return;
  }
  std::vector<std::string> layers;
  for (const manifest::Layer& layer : program.model.layers) layers.push_back(layer.name);
  const auto scopes = nn::PathScopes::Create(program.train.recompute);
  const Status used = scopes.ok() ? scopes->CheckUsed(layers) : scopes.status();
  if (!used.ok()) problems.Add(program.PlaceOf("train.recompute"), path, used.message());
}

}  // namespace

Result<std::optional<manifest::Manifest>> ReadManifest(std::string_view text,
                                                       const manifest::ReadOptions& options,
                                                       Problems& problems) {
  MT_ASSIGN_OR_RETURN(auto read, manifest::Read(text, options, problems));
  if (read) {
    CheckRules(problems, read->program);
    CheckRecomputed(problems, read->program);
  }
  return read;
}

Result<manifest::Manifest> ParseManifest(std::string_view text, std::string_view file,
                                         const manifest::ReadOptions& options) {
  Problems problems(file);
  MT_ASSIGN_OR_RETURN(auto read, ReadManifest(text, options, problems));
  MT_RETURN_IF_ERROR(problems.ToStatus());
  return *std::move(read);
}

}  // namespace meshtrain::recipe
