// Reading a Node field by field, collecting every mistake instead of stopping at the first.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/manifest/node.h"

namespace meshtrain::manifest {

struct Problem {
  Place place;
  std::string path;   // "program.data": where it is told, and
  std::string what;   // "`batch` is missing"
  std::string field;  // what it makes unusable: "program.data.batch"; "" for nothing
};

// The mistakes found so far. Kept true: at most 20 are told.
class Problems {
 public:
  explicit Problems(std::string_view file) : file_(file) {}
  // `path` is also the field that cannot be used.
  void Add(Place place, std::string_view path, std::string what);
  void Add(Problem problem) { found_.push_back(std::move(problem)); }
  bool empty() const { return found_.empty(); }
  // Whether the field at `path` and all below it can be used. What fields say together is told of
  // fields that can, so that one mistake is one line and hides no other.
  bool Clean(std::string_view path) const;
  // In the order of the text.
  std::vector<Problem> Sorted() const;
  const std::string& file() const { return file_; }
  // OK, or kInvalidArgument with a line per mistake in the order of the text.
  Status ToStatus() const;

 private:
  std::string file_;
  std::vector<Problem> found_;
};

// Small letters, digits and _, a letter first.
bool IsPlainName(std::string_view text);

// ", did you mean `units`?", or "; known: units, name" where nothing is near.
std::string Suggest(std::string_view word, std::span<const std::string> known);

// What a number may be. {.least = 0, .below = 1}: "a number of at least 0 and below 1".
struct Bounds {
  std::optional<double> least = std::nullopt;
  std::optional<double> most = std::nullopt;
  std::optional<double> above = std::nullopt;
  std::optional<double> below = std::nullopt;
  bool not_zero = false;

  bool Hold(double number) const;
  std::string ToString(bool whole) const;
};

// The members of a map. Asking for a key makes it known; Done complains of those that nobody asked
// for. A node that is not a map is a mistake (null: an empty map), and every field then has its
// fallback.
class Fields {
 public:
  // `noun`: what a member is called in errors: "field", "option".
  Fields(Problems& problems, const Node& node, std::string path, std::string_view noun = "field");
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;
  ~Fields() { Done(); }

  const std::string& path() const { return path_; }
  std::string Path(std::string_view key) const {
    return path_ + (path_.empty() ? "" : ".") + std::string(key);
  }
  Problems& problems() { return problems_; }

  // Null when absent or null.
  const Node* Get(std::string_view key);
  // The same; its absence is a mistake, which Done tells.
  const Node* Need(std::string_view key);

  int64_t Int(std::string_view key, int64_t fallback, const Bounds& bounds = {});
  double Number(std::string_view key, double fallback, const Bounds& bounds = {});
  bool Bool(std::string_view key, bool fallback);
  std::string Text(std::string_view key, std::string_view fallback = "");
  std::string NeedText(std::string_view key);
  // One of `choices`; `fallback` when absent or wrong.
  std::string Choice(std::string_view key, std::span<const std::string> choices,
                     std::string_view fallback);
  std::vector<std::string> Texts(std::string_view key);
  std::vector<int64_t> Ints(std::string_view key);
  std::vector<double> Numbers(std::string_view key, const Bounds& bounds);

  // Unknown members and missing ones become mistakes; called once, by the destructor at the latest.
  void Done();
  // Members that nobody asks for are no mistake (parts of a document that others read).
  void AllowOthers() { others_ = true; }
  // The place of a key, or of the map.
  Place PlaceOf(std::string_view key) const;
  // "expected WHAT, got: ..." at the key's value.
  void Wrong(std::string_view key, std::string_view what);

 private:
  Problems& problems_;
  const Node& node_;
  std::string path_;
  std::string_view noun_;
  std::vector<std::string> known_;
  std::vector<std::string> missing_;
  bool others_ = false;
  bool done_ = false;
};

// What people write as `name`, or `name: {options}` (a map of one key): losses, optimizers, layers,
// initializers.
struct Named {
  std::string name;
  Place place;   // of the name
  Node options;  // an empty map when there are none
};
// nullopt, with a mistake told, when it is neither. `noun`: "layer".
std::optional<Named> ReadNamed(Problems& problems, const Node& node, const std::string& path,
                               std::string_view noun);

}  // namespace meshtrain::manifest
