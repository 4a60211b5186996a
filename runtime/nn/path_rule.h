// A rule over the paths of weights and layers: a regular expression (RE2's syntax), anchored at the
// start as re.match is.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace re2 {
class RE2;
}

namespace meshtrain::nn {

// Copies share the compiled expression. Thread-safe.
class PathRule {
 public:
  // Errors: kInvalidArgument, "`(` is not a regular expression: ...".
  static Result<PathRule> Create(std::string_view text);

  const std::string& text() const { return text_; }
  // How many characters of the path, from its start, the rule matches; nothing where it does not.
  std::optional<size_t> Match(std::string_view path) const;
  // "`hiden` matches no layer (rules match from the start of a path); near: hidden_1"; `what` names
  // what the paths are of.
  std::string MatchesNone(std::string_view what, const std::vector<std::string>& paths) const;

 private:
  std::string text_;
  std::shared_ptr<const re2::RE2> expression_;
};

// Layers that belong together, by rules over their paths: what a rule matches of a path, up to the
// end of the name that it ends in, is the scope that the path lies in. `blocks\.[0-9]+` puts
// blocks.3.attention and blocks.3.mlp.up into blocks.3.
class PathScopes {
 public:
  // Errors: a rule's own; a rule that is there twice.
  static Result<PathScopes> Create(const std::vector<std::string>& rules);

  bool empty() const { return rules_.empty(); }
  // By the first rule that matches; "": in none.
  std::string_view Of(std::string_view path) const;
  // Errors: kInvalidArgument for the first rule that matches none of the paths.
  Status CheckUsed(const std::vector<std::string>& paths) const;

 private:
  std::vector<PathRule> rules_;
};

}  // namespace meshtrain::nn
