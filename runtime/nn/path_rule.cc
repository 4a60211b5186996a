#include "runtime/nn/path_rule.h"

#include <re2/re2.h>

#include <algorithm>

#include "runtime/base/text.h"

namespace meshtrain::nn {
namespace {

// At most three paths that `rule` may have meant: those that hold its longest plain piece, else the
// first ones.
std::string NearPaths(std::string_view rule, const std::vector<std::string>& paths) {
  std::string piece;
  std::string run;
  for (const char c : rule) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    if (plain) run += c;
    if (!plain) run.clear();
    if (run.size() > piece.size()) piece = run;
  }
  std::vector<std::string> near;
  if (const auto nearest = NearestName(rule, paths)) near.push_back(*nearest);
  for (const bool must_hold : {true, false}) {
    for (const std::string& path : paths) {
      if (near.size() == 3) break;
      if (must_hold && (piece.empty() || path.find(piece) == std::string::npos)) continue;
      if (std::find(near.begin(), near.end(), path) == near.end()) near.push_back(path);
    }
    if (!near.empty()) break;
  }
  return Join(near, ", ");
}

}  // namespace

Result<PathRule> PathRule::Create(std::string_view text) {
  RE2::Options options;
  options.set_log_errors(false);
  auto expression =
      std::make_shared<const RE2>(re2::StringPiece(text.data(), text.size()), options);
  if (!expression->ok()) {
    return InvalidArgument("`" + std::string(text) +
                           "` is not a regular expression: " + expression->error());
  }
  PathRule rule;
  rule.text_ = std::string(text);
  rule.expression_ = std::move(expression);
  return rule;
}

std::optional<size_t> PathRule::Match(std::string_view path) const {
  const re2::StringPiece text(path.data(), path.size());
  re2::StringPiece matched;
  if (!expression_->Match(text, 0, text.size(), RE2::ANCHOR_START, &matched, 1)) {
    return std::nullopt;
  }
  return matched.size();
}

std::string PathRule::MatchesNone(std::string_view what,
                                  const std::vector<std::string>& paths) const {
  const std::string none = "`" + text_ + "` matches no " + std::string(what);
  if (paths.empty()) return none + ": the model has none";
  return none + " (rules match from the start of a path); near: " + NearPaths(text_, paths);
}

Result<PathScopes> PathScopes::Create(const std::vector<std::string>& rules) {
  PathScopes scopes;
  for (const std::string& text : rules) {
    for (const PathRule& known : scopes.rules_) {
      if (known.text() == text) return InvalidArgument("`" + text + "` is there already");
    }
    MT_ASSIGN_OR_RETURN(PathRule rule, PathRule::Create(text));
    scopes.rules_.push_back(std::move(rule));
  }
  return scopes;
}

std::string_view PathScopes::Of(std::string_view path) const {
  for (const PathRule& rule : rules_) {
    const auto matched = rule.Match(path);
    if (!matched || *matched == 0) continue;
    // Of `blocks.12` a rule may match `blocks.1`, or `blocks.`.
    const bool whole = path[*matched - 1] == '.';
    return path.substr(0, whole ? *matched - 1 : std::min(path.find('.', *matched), path.size()));
  }
  return "";
}

Status PathScopes::CheckUsed(const std::vector<std::string>& paths) const {
  for (const PathRule& rule : rules_) {
    const bool used = std::any_of(paths.begin(), paths.end(), [&](const std::string& path) {
      const auto matched = rule.Match(path);
      return matched && *matched > 0;
    });
    if (!used) return InvalidArgument(rule.MatchesNone("layer", paths));
  }
  return OkStatus();
}

}  // namespace meshtrain::nn
