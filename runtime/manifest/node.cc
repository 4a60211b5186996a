#include "runtime/manifest/node.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <sstream>

#include "runtime/base/text.h"

namespace meshtrain::manifest {
namespace {

// Where the text is bad, thrown out of yaml-cpp's callbacks and caught in ParseDocuments.
struct Refusal {
  Place place;
  std::string what;
};

Place PlaceOf(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

int64_t CountNodes(const Node& node) {
  int64_t n = 1;
  for (const Node& item : node.list) n += CountNodes(item);
  for (const Node::Member& member : node.members) n += 1 + CountNodes(member.value);
  return n;
}

// Builds trees from yaml-cpp's events. Its own Node shares what aliases name and forgets where keys
// stood.
class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(const DocumentLimits& limits, const Complain& complain)
      : limits_(limits), complain_(complain) {}

  std::vector<Node> Take() { return std::move(documents_); }

  void OnDocumentStart(const YAML::Mark&) override {
    anchors_.clear();
    root_.reset();
  }
  void OnDocumentEnd() override {
    if (root_ && !root_->IsNull()) documents_.push_back(std::move(*root_));
    root_.reset();
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Node node;
    node.place = PlaceOf(mark);
    Finish(std::move(node), anchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (value.find('\0') != std::string::npos) {
      throw Refusal{PlaceOf(mark),
                    "expected a text without NUL characters, got: " + Excerpt(value)};
    }
    Node node;
    node.kind = Node::Kind::kScalar;
    node.scalar = value;
    node.quoted = tag == "!";  // what yaml-cpp gives a quoted scalar
    node.place = PlaceOf(mark);
    if (!node.quoted && (value == "null" || value == "~" || value == "Null" || value == "NULL")) {
      node.kind = Node::Kind::kNull;
    }
    if (!tag.empty() && tag != "!" && tag != "?") {
      if (tag != "tag:yaml.org,2002:str") {
        throw Refusal{node.place, "tags are not read, got: " + Excerpt(tag)};
      }
      node.quoted = true;
    }
    Finish(std::move(node), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto known = anchors_.find(anchor);
    if (known == anchors_.end()) {
      throw Refusal{PlaceOf(mark), "an alias of a node that contains it"};
    }
    Count(CountNodes(known->second) - 1, PlaceOf(mark));
    Finish(Node(known->second), 0);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Start(Node::Kind::kList, mark, anchor);
  }
  void OnSequenceEnd() override { End(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Start(Node::Kind::kMap, mark, anchor);
  }
  void OnMapEnd() override { End(); }

 private:
  struct Open {
    Node node;
    YAML::anchor_t anchor = 0;
    std::optional<Node> key;  // of a map: read, its value is next
    std::set<std::string, std::less<>> keys;
    bool again = false;  // the key was there before
  };

  void Count(int64_t nodes, Place place) {
    nodes_ += nodes;
    if (nodes_ > limits_.nodes) {
      throw Refusal{place, "more than " + std::to_string(limits_.nodes) +
                               " values (aliases counted in full)"};
    }
  }
  void Start(Node::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    Open open;
    open.node.kind = kind;
    open.node.place = PlaceOf(mark);
    open.anchor = anchor;
    if (static_cast<int>(open_.size()) >= limits_.depth) {
      throw Refusal{open.node.place, "nested deeper than " + std::to_string(limits_.depth)};
    }
    open_.push_back(std::move(open));
  }
  void End() {
    Open open = std::move(open_.back());
    open_.pop_back();
    Finish(std::move(open.node), open.anchor);
  }
  void Finish(Node node, YAML::anchor_t anchor) {
    Count(1, node.place);
    if (anchor != 0) anchors_[anchor] = node;
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& open = open_.back();
    if (open.node.IsList()) {
      open.node.list.push_back(std::move(node));
    } else if (!open.key) {
      if (!node.IsScalar()) throw Refusal{node.place, "expected a key, got: " + node.Describe()};
      if (node.scalar == "<<" && !node.quoted) {
        throw Refusal{node.place, "merge keys (<<) are not read"};
      }
      open.again = !open.keys.insert(node.scalar).second;
      if (open.again) complain_(node.place, "key `" + Excerpt(node.scalar) + "` is here twice");
      open.key = std::move(node);
    } else {
      if (!open.again) {
        open.node.members.push_back(
            {std::move(open.key->scalar), open.key->place, std::move(node)});
      }
      open.key.reset();
    }
  }

  const DocumentLimits& limits_;
  const Complain& complain_;
  int64_t nodes_ = 0;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Node> anchors_;
  std::optional<Node> root_;
  std::vector<Node> documents_;
};

}  // namespace

Node Node::Map() {
  Node node;
  node.kind = Kind::kMap;
  return node;
}

Node Node::List(std::vector<Node> items) {
  Node node;
  node.kind = Kind::kList;
  node.list = std::move(items);
  return node;
}

Node Node::Word(std::string_view word) {
  Node node;
  node.kind = Kind::kScalar;
  node.scalar = word;
  return node;
}

Node Node::Text(std::string_view text) {
  Node node = Word(text);
  node.quoted = true;
  return node;
}

Node Node::Number(double number) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  return Word(std::string_view(text, static_cast<size_t>(end - text)));
}

void Node::Put(std::string_view key, Node value) {
  members.push_back({std::string(key), {}, std::move(value)});
}

const Node* Node::Find(std::string_view key) const {
  for (const Member& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

std::string Node::Describe() const {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a map";
    case Kind::kScalar:
      break;
  }
  const std::string text = Excerpt(scalar);
  return quoted ? "\"" + text + "\"" : text;
}

std::optional<double> Node::AsDouble() const {
  if (!IsScalar() || quoted) return std::nullopt;
  std::string_view text = scalar;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto number = ParseDouble(text);
  if (!number || !std::isfinite(*number)) return std::nullopt;
  return number;
}

std::optional<int64_t> Node::AsInt() const {
  if (!IsScalar() || quoted) return std::nullopt;
  if (const auto whole = ParseInt(scalar)) return whole;
  const auto number = AsDouble();
  constexpr double kExact = 9007199254740992;  // 2^53
  if (!number || std::trunc(*number) != *number || std::abs(*number) > kExact) return std::nullopt;
  return static_cast<int64_t>(*number);
}

std::optional<bool> Node::AsBool() const {
  if (!IsScalar() || quoted) return std::nullopt;
  if (scalar == "true" || scalar == "True" || scalar == "TRUE") return true;
  if (scalar == "false" || scalar == "False" || scalar == "FALSE") return false;
  return std::nullopt;
}

std::string At(std::string_view file, Place place, std::string_view path) {
  std::string text(file);
  if (place.line > 0) {
    if (!text.empty()) text += ':';
    text += std::to_string(place.line) + ":" + std::to_string(place.column);
  }
  if (!text.empty()) text += ": ";
  if (!path.empty()) text += std::string(path) + ": ";
  return text;
}

Result<std::vector<Node>> ParseDocuments(std::string_view text, std::string_view file,
                                         const DocumentLimits& limits) {
  std::string wrong;
  auto documents = ParseDocuments(
      text, file,
      [&](Place place, const std::string& what) {
        wrong += (wrong.empty() ? "" : "\n") + At(file, place, "") + what;
      },
      limits);
  if (documents.ok() && !wrong.empty()) return InvalidArgument(wrong);
  return documents;
}

Result<std::vector<Node>> ParseDocuments(std::string_view text, std::string_view file,
                                         const Complain& complain, const DocumentLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.bytes) {
    return InvalidArgument(At(file, {}, "") + "expected at most " + HumanBytes(limits.bytes) +
                           ", got: " + HumanBytes(static_cast<int64_t>(text.size())));
  }
  // yaml-cpp takes it for the end of the text.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return InvalidArgument(At(file, {}, "") +
                           "expected a text without NUL characters, got: one at byte " +
                           std::to_string(nul));
  }
  TreeBuilder builder(limits, complain);
  std::istringstream stream{std::string(text)};
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refusal& refusal) {
    return InvalidArgument(At(file, refusal.place, "") + refusal.what);
  } catch (const YAML::Exception& e) {
    return InvalidArgument(At(file, e.mark.is_null() ? Place{} : PlaceOf(e.mark), "") +
                           Excerpt(e.msg));
  }
  return builder.Take();
}

namespace {

// In double quotes, as YAML and JSON both read it.
std::string Quoted(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Words and numbers need no quotes.
std::string Scalar(const Node& node) {
  if (node.IsNull()) return "null";
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-' || c == '+';
  };
  const std::string& text = node.scalar;
  if (!node.quoted && !text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  return Quoted(text);
}

// Keys are texts. In quotes where another reader, of YAML 1.1 or 1.2, would take one for a number,
// a boolean or null.
std::string Key(std::string_view key) {
  constexpr std::string_view kMeansMore[] = {"y",   "n",    "yes",   "no",  "on",
                                             "off", "true", "false", "null"};
  const std::string lower = ToLower(key);
  const bool word = !lower.empty() && ((lower[0] >= 'a' && lower[0] <= 'z') || lower[0] == '_');
  const bool more =
      std::find(std::begin(kMeansMore), std::end(kMeansMore), lower) != std::end(kMeansMore);
  return word && !more ? Scalar(Node::Word(key)) : Quoted(key);
}

std::string InOneLine(const Node& node) {
  std::string out;
  if (node.IsList()) {
    for (const Node& item : node.list) out += (out.empty() ? "" : ", ") + InOneLine(item);
    return "[" + out + "]";
  }
  if (!node.IsMap()) return Scalar(node);
  for (const Node::Member& member : node.members) {
    out += (out.empty() ? "" : ", ") + Key(member.key) + ": " + InOneLine(member.value);
  }
  return "{" + out + "}";
}

constexpr size_t kLongLine = 80;

void Lines(const Node& node, const std::string& indent, std::string* out) {
  if (node.IsMap()) {
    for (const Node::Member& member : node.members) {
      const std::string begin = indent + Key(member.key) + ":";
      const std::string line = InOneLine(member.value);
      const bool one = member.value.IsScalar() || member.value.IsNull() ||
                       begin.size() + line.size() < kLongLine;
      if (one) {
        *out += begin + " " + line + "\n";
      } else {
        *out += begin + "\n";
        Lines(member.value, indent + "  ", out);
      }
    }
    return;
  }
  for (const Node& item : node.list) *out += indent + "- " + InOneLine(item) + "\n";
}

}  // namespace

std::string ToYaml(const Node& node) {
  const bool lines =
      (node.IsMap() && !node.members.empty()) || (node.IsList() && !node.list.empty());
  if (!lines) return InOneLine(node) + "\n";
  std::string out;
  Lines(node, "", &out);
  return out;
}

}  // namespace meshtrain::manifest
