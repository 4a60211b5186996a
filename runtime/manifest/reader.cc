#include "runtime/manifest/reader.h"

#include <algorithm>

#include "runtime/base/text.h"

namespace meshtrain::manifest {

void Problems::Add(Place place, std::string_view path, std::string what) {
  found_.push_back({place, std::string(path), std::move(what), std::string(path)});
}

bool Problems::Clean(std::string_view path) const {
  return std::none_of(found_.begin(), found_.end(), [&](const Problem& problem) {
    const std::string& field = problem.field;
    if (!field.starts_with(path)) return false;
    return field.size() == path.size() || field[path.size()] == '.' || field[path.size()] == '[';
  });
}

std::vector<Problem> Problems::Sorted() const {
  std::vector<Problem> sorted = found_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Problem& a, const Problem& b) { return a.place < b.place; });
  return sorted;
}

Status Problems::ToStatus() const {
  if (found_.empty()) return OkStatus();
  constexpr size_t kMost = 20;
  // Of what a problem quotes each part is cut where it is quoted; this is the whole.
  constexpr size_t kLongest = 2000;
  std::vector<std::string> lines;
  for (const Problem& problem : Sorted()) {
    if (lines.size() == kMost) {
      lines.push_back("and " + std::to_string(found_.size() - kMost) + " more");
      break;
    }
    lines.push_back(At(file_, problem.place, Excerpt(problem.path)) +
                    Excerpt(problem.what, kLongest));
  }
  return InvalidArgument(Join(lines, "\n"));
}

bool Bounds::Hold(double number) const {
  return !(least && number < *least) && !(most && number > *most) && !(above && number <= *above) &&
         !(below && number >= *below) && !(not_zero && number == 0);
}

std::string Bounds::ToString(bool whole) const {
  std::vector<std::string> parts;
  const auto add = [&](const char* word, const std::optional<double>& bound) {
    if (bound) parts.push_back(word + Node::Number(*bound).scalar);
  };
  add("of at least ", least);
  add("above ", above);
  add("of at most ", most);
  add("below ", below);
  if (not_zero) parts.push_back("that is not 0");
  return (whole ? "a whole number" : "a number") + std::string(parts.empty() ? "" : " ") +
         Join(parts, " and ");
}

std::string Suggest(std::string_view word, std::span<const std::string> known) {
  std::string near = DidYouMean(word, known);
  if (!near.empty() || known.empty()) return near;
  return "; known: " + Join(known, ", ");
}

Fields::Fields(Problems& problems, const Node& node, std::string path, std::string_view noun)
    : problems_(problems), node_(node), path_(std::move(path)), noun_(noun) {
  if (node.IsMap() || node.IsNull()) return;
  problems.Add(node.place, path_, "expected a map, got: " + node.Describe());
  done_ = true;
}

const Node* Fields::Get(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
  const Node* value = node_.Find(key);
  return value == nullptr || value->IsNull() ? nullptr : value;
}

const Node* Fields::Need(std::string_view key) {
  const Node* value = Get(key);
  if (value == nullptr && (node_.IsMap() || node_.IsNull())) {
    missing_.emplace_back(key);
  }
  return value;
}

Place Fields::PlaceOf(std::string_view key) const {
  for (const Node::Member& member : node_.members) {
    if (member.key == key) return member.place;
  }
  return node_.place;
}

void Fields::Wrong(std::string_view key, std::string_view what) {
  const Node* value = Get(key);
  problems_.Add(value != nullptr ? value->place : PlaceOf(key), Path(key),
                "expected " + std::string(what) +
                    ", got: " + (value != nullptr ? value->Describe() : "nothing"));
}

int64_t Fields::Int(std::string_view key, int64_t fallback, const Bounds& bounds) {
  const Node* value = Get(key);
  if (value == nullptr) return fallback;
  const auto number = value->AsInt();
  if (number && bounds.Hold(static_cast<double>(*number))) return *number;
  Wrong(key, bounds.ToString(true));
  return fallback;
}

double Fields::Number(std::string_view key, double fallback, const Bounds& bounds) {
  const Node* value = Get(key);
  if (value == nullptr) return fallback;
  const auto number = value->AsDouble();
  if (number && bounds.Hold(*number)) return *number;
  Wrong(key, bounds.ToString(false));
  return fallback;
}

bool Fields::Bool(std::string_view key, bool fallback) {
  const Node* value = Get(key);
  if (value == nullptr) return fallback;
  const auto flag = value->AsBool();
  if (!flag) Wrong(key, "true or false");
  return flag.value_or(fallback);
}

std::string Fields::Text(std::string_view key, std::string_view fallback) {
  const Node* value = Get(key);
  if (value == nullptr) return std::string(fallback);
  if (value->IsScalar()) return value->scalar;
  Wrong(key, "a text");
  return std::string(fallback);
}

std::string Fields::NeedText(std::string_view key) {
  return Need(key) == nullptr ? std::string() : Text(key);
}

std::string Fields::Choice(std::string_view key, std::span<const std::string> choices,
                           std::string_view fallback) {
  const Node* value = Get(key);
  if (value == nullptr) return std::string(fallback);
  if (value->IsScalar() &&
      std::find(choices.begin(), choices.end(), value->scalar) != choices.end()) {
    return value->scalar;
  }
  problems_.Add(value->place, Path(key),
                "expected one of " + Join(choices, ", ") + ", got: " + value->Describe() +
                    (value->IsScalar() ? DidYouMean(value->scalar, choices) : ""));
  return std::string(fallback);
}

std::vector<std::string> Fields::Texts(std::string_view key) {
  std::vector<std::string> texts;
  const Node* value = Get(key);
  if (value == nullptr) return texts;
  if (!value->IsList()) {
    Wrong(key, "a list");
    return texts;
  }
  for (const Node& item : value->list) {
    if (item.IsScalar()) {
      texts.push_back(item.scalar);
    } else {
      problems_.Add(item.place, Path(key), "expected a text, got: " + item.Describe());
    }
  }
  return texts;
}

std::vector<int64_t> Fields::Ints(std::string_view key) {
  std::vector<int64_t> numbers;
  const Node* value = Get(key);
  if (value == nullptr) return numbers;
  if (!value->IsList()) {
    Wrong(key, "a list of whole numbers");
    return numbers;
  }
  for (const Node& item : value->list) {
    if (const auto number = item.AsInt()) {
      numbers.push_back(*number);
    } else {
      problems_.Add(item.place, Path(key), "expected a whole number, got: " + item.Describe());
    }
  }
  return numbers;
}

std::vector<double> Fields::Numbers(std::string_view key, const Bounds& bounds) {
  std::vector<double> numbers;
  const Node* value = Get(key);
  if (value == nullptr) return numbers;
  if (!value->IsList()) {
    Wrong(key, "a list of numbers");
    return numbers;
  }
  for (const Node& item : value->list) {
    const auto number = item.AsDouble();
    if (number && bounds.Hold(*number)) {
      numbers.push_back(*number);
    } else {
      problems_.Add(item.place, Path(key),
                    "expected " + bounds.ToString(false) + ", got: " + item.Describe());
    }
  }
  return numbers;
}

void Fields::Done() {
  if (done_) return;
  done_ = true;
  if (!others_) {
    for (const Node::Member& member : node_.members) {
      if (std::find(known_.begin(), known_.end(), member.key) != known_.end()) continue;
      // A slip for what is missing is one mistake.
      const auto meant = NearestName(member.key, known_);
      const bool slip = meant && std::erase(missing_, *meant) > 0;
      problems_.Add({member.place, path_,
                     "unknown " + std::string(noun_) + " `" + Excerpt(member.key) + "`" +
                         Suggest(member.key, known_),
                     slip ? Path(*meant) : Path(member.key)});
    }
  }
  for (const std::string& key : missing_) {
    problems_.Add({PlaceOf(key), path_, "`" + key + "` is missing", Path(key)});
  }
}

bool IsPlainName(std::string_view text) {
  if (text.empty() || text[0] < 'a' || text[0] > 'z') return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::optional<Named> ReadNamed(Problems& problems, const Node& node, const std::string& path,
                               std::string_view noun) {
  Node none;
  none.kind = Node::Kind::kMap;
  none.place = node.place;
  if (node.IsScalar()) return Named{node.scalar, node.place, std::move(none)};
  if (node.IsMap() && node.members.size() == 1) {
    const Node::Member& member = node.members[0];
    none.place = member.place;
    return Named{member.key, member.place, member.value.IsNull() ? none : member.value};
  }
  if (node.IsMap() && node.members.size() > 1) {
    problems.Add(node.place, path,
                 "expected one " + std::string(noun) + ", got: a map of " +
                     std::to_string(node.members.size()) + " keys (options of `" +
                     Excerpt(node.members[0].key) + "` are indented below it)");
  } else {
    problems.Add(node.place, path, "expected a " + std::string(noun) + ", got: " + node.Describe());
  }
  return std::nullopt;
}

}  // namespace meshtrain::manifest
