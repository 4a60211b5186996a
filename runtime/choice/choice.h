// What a text chose by name, with the options that it gave: `dense: {units: 10}`. Plain values that
// know no layer, optimizer or device; who makes the thing itself reads its options here.
//
// Equality is of what is said, not of where it stood.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace meshtrain::choice {

// In a text, from 1; line 0: unknown.
struct Place {
  int line = 0;
  int column = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

// Where something stood, for errors that come later. All are equal.
struct Spot {
  Place place;
  std::string path;  // "program.model[1].dense"
  friend bool operator==(const Spot&, const Spot&) { return true; }
};

struct Choice;
// A nested choice (an initializer) or group of options (a regularizer) is a vector of one.
using Value = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>,
                           std::vector<double>, std::vector<std::string>, std::vector<Choice>>;

// The options that a text gives, by name. An option that is not there, or is of another type, has
// the fallback.
class Options {
 public:
  void Set(std::string_view name, Value value);
  const Value* Find(std::string_view name) const;  // null where it is not given
  bool empty() const { return values_.empty(); }
  std::vector<std::string> names() const;  // of those that are given, sorted

  bool Bool(std::string_view name, bool fallback) const;
  int64_t Int(std::string_view name, int64_t fallback) const;
  std::optional<int64_t> MaybeInt(std::string_view name) const;
  double Number(std::string_view name, double fallback) const;
  std::optional<double> MaybeNumber(std::string_view name) const;
  std::string Text(std::string_view name, std::string_view fallback = "") const;
  std::optional<std::vector<int64_t>> Ints(std::string_view name) const;
  std::optional<std::vector<double>> Numbers(std::string_view name) const;
  std::optional<std::vector<std::string>> Texts(std::string_view name) const;
  const Choice* Chosen(std::string_view name) const;  // null where it is not given

  friend bool operator==(const Options&, const Options&);

 private:
  std::map<std::string, Value, std::less<>> values_;
};

struct Choice {
  std::string kind;  // "dense"; "" of a group of options
  Options options;
  Spot spot;
  friend bool operator==(const Choice&, const Choice&) = default;
};

}  // namespace meshtrain::choice
