#include "runtime/nn/layout_map.h"

#include <algorithm>
#include <span>

#include "runtime/nn/path_rule.h"

namespace meshtrain::nn {
namespace {

thread_local const LayoutMap* current_map = nullptr;

}  // namespace

Status LayoutMap::Add(std::string_view key, LayoutSpecs specs) {
  for (const Rule& rule : rules_) {
    if (rule.key == key) {
      return InvalidArgument("layout key `" + std::string(key) + "` is there already");
    }
  }
  auto rule = PathRule::Create(key);
  if (!rule.ok()) return InvalidArgument("layout key " + rule.status().message());
  rules_.push_back(
      {std::string(key), std::move(specs), std::make_shared<const PathRule>(*std::move(rule))});
  return OkStatus();
}

std::optional<size_t> LayoutMap::Find(std::string_view path) const {
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (rules_[i].rule->Match(path)) return i;
  }
  return std::nullopt;
}

Status LayoutMap::CheckUsed(size_t i, const std::vector<std::string>& paths) const {
  std::optional<std::string> taken;
  for (const std::string& path : paths) {
    if (Find(path) == i) return OkStatus();
    if (!taken && rules_[i].rule->Match(path)) taken = path;
  }
  if (taken) {
    return InvalidArgument("layout rule `" + rules_[i].key + "` is never used: `" + *taken +
                           "` matches `" + rules_[*Find(*taken)].key + "` first");
  }
  return InvalidArgument("layout rule " + rules_[i].rule->MatchesNone("parameter", paths));
}

Status LayoutMap::Apply(std::vector<Parameter>& parameters) const {
  std::vector<std::string> paths;
  for (Parameter& parameter : parameters) {
    paths.push_back(parameter.name());
    const auto rule = Find(parameter.name());
    if (!rule) continue;
    if (!parameter.layout()) parameter.set_layout(rules_[*rule].specs);
    MT_RETURN_IF_ERROR(CheckRank(rules_[*rule].specs, parameter.name(), parameter.type().rank())
                           .At("layout rule `" + rules_[*rule].key + "`"));
  }
  for (size_t i = 0; i < rules_.size(); ++i) MT_RETURN_IF_ERROR(CheckUsed(i, paths));
  return OkStatus();
}

LayoutMap::Scope::Scope(const LayoutMap& map) : previous_(current_map) { current_map = &map; }
LayoutMap::Scope::~Scope() { current_map = previous_; }
const LayoutMap* LayoutMap::Current() { return current_map; }

}  // namespace meshtrain::nn
