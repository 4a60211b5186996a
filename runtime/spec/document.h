// YAML and JSON text as a tree that remembers where everything stood, so that each error can say
// line and column.
//
// One grammar for both: JSON is YAML 1.2. Kept true: keys of a map are unique scalars; sizes are
// bounded (text, nodes, depth), aliases counted at their full size, so an alias bomb is an error
// and not a full machine.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace meshtrain::spec {

// From 1; line 0: unknown.
struct Place {
  int line = 0;
  int column = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

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

// The documents of a text ("---" between them), empty ones left out. `file` stands in front of
// errors. Errors: kInvalidArgument "FILE:LINE:COLUMN: what".
Result<std::vector<Node>> ParseDocuments(std::string_view text, std::string_view file,
                                         const DocumentLimits& limits = {});

// "FILE:LINE:COLUMN: PATH: ", parts that are unknown left out.
std::string At(std::string_view file, Place place, std::string_view path);

}  // namespace meshtrain::spec
