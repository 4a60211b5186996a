#include "runtime/nn/layout_map.h"

#include <re2/re2.h>

#include <algorithm>
#include <span>

#include "runtime/base/text.h"

namespace meshtrain::nn {
namespace {

thread_local const LayoutMap* current_map = nullptr;

// At most three paths that `key` may have meant: those that hold its longest plain piece, else the
// first ones.
std::string NearPaths(std::string_view key, const std::vector<std::string>& paths) {
  std::string piece;
  std::string run;
  for (const char c : key) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    if (plain) run += c;
    if (!plain) run.clear();
    if (run.size() > piece.size()) piece = run;
  }
  std::vector<std::string> near;
  if (const auto nearest = NearestName(key, paths)) near.push_back(*nearest);
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

Status LayoutMap::Add(std::string_view key, LayoutSpecs specs) {
  for (const Rule& rule : rules_) {
    if (rule.key == key) {
      return InvalidArgument("layout key `" + std::string(key) + "` is there already");
    }
  }
  RE2::Options options;
  options.set_log_errors(false);
  auto expression = std::make_shared<const RE2>(re2::StringPiece(key.data(), key.size()), options);
  if (!expression->ok()) {
    return InvalidArgument("layout key `" + std::string(key) +
                           "` is not a regular expression: " + expression->error());
  }
  rules_.push_back({std::string(key), std::move(specs), std::move(expression)});
  return OkStatus();
}

std::optional<size_t> LayoutMap::Find(std::string_view path) const {
  const re2::StringPiece text(path.data(), path.size());
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (rules_[i].expression->Match(text, 0, text.size(), RE2::ANCHOR_START, nullptr, 0)) return i;
  }
  return std::nullopt;
}

Status LayoutMap::CheckUsed(size_t i, const std::vector<std::string>& paths) const {
  std::optional<std::string> taken;
  for (const std::string& path : paths) {
    if (Find(path) == i) return OkStatus();
    const re2::StringPiece text(path.data(), path.size());
    if (!taken &&
        rules_[i].expression->Match(text, 0, text.size(), RE2::ANCHOR_START, nullptr, 0)) {
      taken = path;
    }
  }
  const std::string rule = "layout rule `" + rules_[i].key + "`";
  if (taken) {
    return InvalidArgument(rule + " is never used: `" + *taken + "` matches `" +
                           rules_[*Find(*taken)].key + "` first");
  }
  if (paths.empty()) return InvalidArgument(rule + " matches no parameter: the model has none");
  return InvalidArgument(rule +
                         " matches no parameter (keys match from the start of a path); near: " +
                         NearPaths(rules_[i].key, paths));
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
