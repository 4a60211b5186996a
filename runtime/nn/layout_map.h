// Rules that give weights their layouts by their paths.
//
//   LayoutMap map;
//   map.Add("feature.*kernel", {"unsharded", "model"});    // feature.kernel and feature_2.kernel
//
// Keys are regular expressions (RE2's syntax), anchored at the start as re.match is: "kernel" does
// not match "hidden_1.kernel", "feature" matches "feature_2.bias". The first key that matches wins;
// a path that none matches is replicated. A layout that was given to a weight itself goes before
// the map.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/layout.h"
#include "runtime/nn/parameter.h"

namespace meshtrain::nn {

class PathRule;

// Copies share the compiled expressions. Thread-safe once filled.
class LayoutMap {
 public:
  // Errors: kInvalidArgument for an expression that does not parse or a key that is already there.
  Status Add(std::string_view key, LayoutSpecs specs);
  Status Add(std::string_view key, const mesh::Layout& layout) { return Add(key, layout.specs()); }

  bool empty() const { return rules_.empty(); }
  size_t size() const { return rules_.size(); }
  const std::string& key(size_t i) const { return rules_[i].key; }
  const LayoutSpecs& specs(size_t i) const { return rules_[i].specs; }
  // The first rule that matches, or nothing.
  std::optional<size_t> Find(std::string_view path) const;

  // Gives each parameter without a layout that of its rule. Errors: kInvalidArgument for a rule
  // whose specs do not fit the rank of the parameter, and for a rule that wins for no parameter;
  // that message names near paths.
  Status Apply(std::vector<Parameter>& parameters) const;
  // The check of Apply alone, over paths: for rule i, what is wrong with it. OK when it is the
  // first to match some path.
  Status CheckUsed(size_t i, const std::vector<std::string>& paths) const;

  // While it lives, weights that layers of this thread create (on their first call) take their
  // layouts from `map`, which must outlive it.
  class Scope {
   public:
    explicit Scope(const LayoutMap& map);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const LayoutMap* previous_;
  };
  // Null outside every Scope.
  static const LayoutMap* Current();

 private:
  struct Rule {
    std::string key;
    LayoutSpecs specs;
    std::shared_ptr<const PathRule> rule;
  };
  std::vector<Rule> rules_;
};

using mesh::CheckRank;

}  // namespace meshtrain::nn
