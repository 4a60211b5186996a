// YAML and JSON text as a tree that remembers where everything stood, so that each error can say
// line and column; and a tree as text.
//
// One grammar for both: JSON is YAML 1.2. Kept true: keys of a map are unique scalars; sizes are
// bounded (text, nodes, depth), aliases counted at their full size, so an alias bomb is an error
// and not a full machine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/choice/choice.h"

namespace meshtrain::manifest {

using choice::Place;

struct Node {
  enum class Kind : uint8_t { kNull, kScalar, kList, kMap };
  struct Member;

  Kind kind = Kind::kNull;
  std::string scalar;
  bool quoted = false;  // a quoted scalar is a string whatever it looks like
  std::vector<Node> list;
  std::vector<Member> members;  // of a map, in the order of the text
  Place place;

  bool IsMap() const { return kind == Kind::kMap; }
  bool IsList() const { return kind == Kind::kList; }
  bool IsScalar() const { return kind == Kind::kScalar; }
  bool IsNull() const { return kind == Kind::kNull; }
  static Node Map();
  static Node List(std::vector<Node> items);
  static Node Text(std::string_view text);  // quoted: a string whatever it looks like
  static Node Word(std::string_view word);  // plain: a number, true, a name
  static Node Number(double number);        // reads as the same number
  void Put(std::string_view key, Node value);

  // Null when it is no map or has no such key.
  const Node* Find(std::string_view key) const;
  // What people call it: "a map", "a list", "null", "true", "`abc`".
  std::string Describe() const;

  // Plain scalars only (YAML 1.2 core): nothing when it is of another kind.
  std::optional<int64_t> AsInt() const;  // also 1e3 and 2.0, which JSON writers make of integers
  std::optional<double> AsDouble() const;
  std::optional<bool> AsBool() const;  // true, false
};

struct Node::Member {
  std::string key;
  Place place;  // of the key
  Node value;
};

struct DocumentLimits {
  int64_t bytes = int64_t{4} << 20;
  int64_t nodes = 200'000;
  int depth = 64;
};

// Takes a mistake: its place, and what it is.
using Complain = std::function<void(Place, std::string)>;

// The documents of a text ("---" between them), empty ones left out. `file` stands in front of
// errors. Errors: kInvalidArgument "FILE:LINE:COLUMN: what".
Result<std::vector<Node>> ParseDocuments(std::string_view text, std::string_view file,
                                         const DocumentLimits& limits = {});
// As above, but a key that is there twice is complained of, its second value left out, and reading
// goes on, so that it hides no other mistake.
Result<std::vector<Node>> ParseDocuments(std::string_view text, std::string_view file,
                                         const Complain& complain,
                                         const DocumentLimits& limits = {});

// YAML that reads as `node`: maps and lists of maps on lines of their own, all else in one line. A
// key is a text to readers of YAML 1.1 too.
std::string ToYaml(const Node& node);

// "FILE:LINE:COLUMN: PATH: ", parts that are unknown left out.
std::string At(std::string_view file, Place place, std::string_view path);

}  // namespace meshtrain::manifest
