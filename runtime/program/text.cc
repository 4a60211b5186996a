// The text form read back (program.h describes it).
#include "runtime/base/text.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "runtime/program/program.h"
#include "runtime/program/registry.h"

namespace meshtrain::program {
namespace {

bool IsWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '/' || c == '-';
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Program> Parse() {
    MT_RETURN_IF_ERROR(Header());
    while (SkipEmptyLines()) MT_RETURN_IF_ERROR(Line());
    const auto count = static_cast<ValueId>(values_.size());
    for (const auto& [id, value] : values_) {
      if (id >= count) {
        return ErrorAt(value.at, "expected value numbers from %0 to %" + std::to_string(count - 1) +
                                     ", got: %" + std::to_string(id));
      }
      program_.values.push_back(value.info);
    }
    if (Status s = Validate(program_); !s.ok()) return s;
    return std::move(program_);
  }

 private:
  struct Known {
    ValueInfo info;
    size_t at;  // where it was defined
  };

  // --- characters

  Status ErrorAt(size_t at, const std::string& message) const {
    const std::string_view before = text_.substr(0, at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    return InvalidArgument("program text, line " + std::to_string(line) + ", column " +
                           std::to_string(at - start + 1) + ": " + message);
  }

  // The rest of the line, cut short, for messages.
  std::string Rest() const {
    const std::string_view rest = text_.substr(at_, text_.find('\n', at_) - at_);
    return rest.empty() ? "the end of the line" : std::string(rest.substr(0, 40));
  }

  Status Expected(const std::string& what) const {
    return ErrorAt(at_, "expected " + what + ", got: " + Rest());
  }

  void SkipSpaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  // False at the end of the text.
  bool SkipEmptyLines() {
    for (SkipSpaces(); at_ < text_.size() && text_[at_] == '\n'; SkipSpaces()) ++at_;
    return at_ < text_.size();
  }

  bool Take(std::string_view token) {
    SkipSpaces();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  Status Need(std::string_view token) {
    return Take(token) ? OkStatus() : Expected("`" + std::string(token) + "`");
  }

  Status NeedEndOfLine() {
    SkipSpaces();
    if (at_ < text_.size() && text_[at_] != '\n') return Expected("the end of the line");
    return OkStatus();
  }

  std::string_view Word() {
    SkipSpaces();
    const size_t start = at_;
    while (at_ < text_.size() && IsWord(text_[at_])) ++at_;
    return text_.substr(start, at_ - start);
  }

  // --- pieces

  Result<std::string> Quoted() {
    MT_RETURN_IF_ERROR(Need("\""));
    std::string value;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      char c = text_[at_];
      if (c == '\n') break;
      if (c == '\\') {
        c = at_ + 1 < text_.size() ? text_[++at_] : '\0';
        if (c == 'n') {
          c = '\n';
        } else if (c != '"' && c != '\\') {
          return Expected("\\\\, \\\" or \\n after a backslash");
        }
      }
      value += c;
    }
    if (!Take("\"")) return Expected("a closing quote");
    return value;
  }

  Result<std::string> Name() {
    SkipSpaces();
    if (at_ < text_.size() && text_[at_] == '"') return Quoted();
    const std::string_view word = Word();
    if (word.empty()) return Expected("a name");
    return std::string(word);
  }

  Result<ValueId> Id() {
    SkipSpaces();
    const size_t start = at_;
    MT_RETURN_IF_ERROR(Need("%"));
    const std::optional<int64_t> id = ParseInt(Word());
    if (!id || *id < 0 || *id > (1 << 24)) {
      at_ = start;
      return Expected("a value such as %12");
    }
    return static_cast<ValueId>(*id);
  }

  Result<ValueId> KnownId() {
    SkipSpaces();
    const size_t start = at_;
    MT_ASSIGN_OR_RETURN(const ValueId id, Id());
    if (!values_.contains(id)) {
      return ErrorAt(start, "%" + std::to_string(id) + " is used before it is produced");
    }
    return id;
  }

  Result<TensorType> Type() {
    SkipSpaces();
    const size_t start = at_;
    const size_t close = text_.find_first_of("]\n", at_);
    if (close == std::string_view::npos || text_[close] == '\n') {
      return Expected("a type such as f32[8,4]");
    }
    at_ = close + 1;
    auto type = TensorType::Parse(text_.substr(start, at_ - start));
    if (!type.ok()) return ErrorAt(start, type.status().message());
    return type;
  }

  Status Define(ValueId id, TensorType type, int32_t op, size_t at) {
    if (!values_.emplace(id, Known{{std::move(type), op}, at}).second) {
      return ErrorAt(at, "%" + std::to_string(id) + " has two producers");
    }
    return OkStatus();
  }

  Status Once(const std::string& kind, const std::string& name, size_t at) {
    if (names_.insert(kind + " " + name).second) return OkStatus();
    return ErrorAt(at, kind + " `" + name + "` is named twice");
  }

  // --- attributes

  // A bare number: whole, or with a point, exponent, inf or nan.
  Result<Attr> Number() {
    SkipSpaces();
    const size_t start = at_;
    while (at_ < text_.size() && (IsWord(text_[at_]) || text_[at_] == '+')) ++at_;
    const std::string_view word = text_.substr(start, at_ - start);
    if (const auto whole = ParseInt(word)) return Attr(*whole);
    if (const auto number = ParseDouble(word)) return Attr(*number);
    at_ = start;
    return Expected("an attribute's value: true, 3, 3.0, \"text\", [1,2] or d[1.0,2.0]");
  }

  template <typename T>
  Result<Attr> List(const char* what) {
    std::vector<T> items;
    if (Take("]")) return Attr(std::move(items));
    do {
      SkipSpaces();
      const size_t start = at_;
      MT_ASSIGN_OR_RETURN(const Attr item, Number());
      const T* value = std::get_if<T>(&item);
      if (value == nullptr) {
        return ErrorAt(start, std::string("expected ") + what + ", got: " + AttrText(item));
      }
      items.push_back(*value);
    } while (Take(","));
    MT_RETURN_IF_ERROR(Need("]"));
    return Attr(std::move(items));
  }

  Result<Attr> AttrValue() {
    SkipSpaces();
    if (at_ < text_.size() && text_[at_] == '"') {
      MT_ASSIGN_OR_RETURN(std::string value, Quoted());
      return Attr(std::move(value));
    }
    if (Take("d[")) return List<double>("a floating-point number");
    if (Take("[")) return List<int64_t>("an integer");
    if (Take("true")) return Attr(true);
    if (Take("false")) return Attr(false);
    return Number();
  }

  Result<Attrs> AttrList() {
    Attrs attrs;
    if (!Take("{")) return attrs;
    do {
      SkipSpaces();
      const size_t start = at_;
      const std::string name(Word());
      if (name.empty()) return Expected("an attribute's name");
      if (attrs.Has(name)) return ErrorAt(start, "attribute `" + name + "` is given twice");
      MT_RETURN_IF_ERROR(Need("="));
      MT_ASSIGN_OR_RETURN(Attr value, AttrValue());
      attrs.Set(name, std::move(value));
    } while (Take(","));
    MT_RETURN_IF_ERROR(Need("}"));
    return attrs;
  }

  // --- lines

  Status Header() {
    SkipEmptyLines();
    if (Word() != "program") {
      at_ = 0;
      return Expected("`program` and a name");
    }
    SkipSpaces();
    MT_ASSIGN_OR_RETURN(program_.name, Name());
    return NeedEndOfLine();
  }

  Status Line() {
    const size_t start = at_;
    if (text_[at_] == '%') return OpLine();
    const std::string kind(Word());
    SkipSpaces();
    const size_t name_at = at_;
    if (kind != "input" && kind != "state" && kind != "output" && kind != "update" &&
        kind != "watch") {
      at_ = start;
      return Expected("input, state, output, update, watch or a value such as %12");
    }
    MT_ASSIGN_OR_RETURN(const std::string name, Name());
    if (kind != "watch") MT_RETURN_IF_ERROR(Once(kind, name, name_at));
    if (kind == "input" || kind == "state") {
      MT_RETURN_IF_ERROR(Need(":"));
      MT_ASSIGN_OR_RETURN(TensorType type, Type());
      MT_RETURN_IF_ERROR(Need("="));
      SkipSpaces();
      const size_t id_at = at_;
      MT_ASSIGN_OR_RETURN(const ValueId id, Id());
      MT_RETURN_IF_ERROR(Define(id, std::move(type), -1, id_at));
      if (kind == "input") {
        program_.inputs.push_back({name, id});
      } else {
        program_.states.push_back({name, id, id});
      }
      return NeedEndOfLine();
    }
    MT_RETURN_IF_ERROR(Need("="));
    SkipSpaces();
    const size_t id_at = at_;
    MT_ASSIGN_OR_RETURN(const ValueId id, KnownId());
    if (kind == "output") {
      program_.outputs.push_back({name, id});
      return NeedEndOfLine();
    }
    if (kind == "watch") {
      if (!mesh::IsFloat(values_.at(id).info.type.dtype)) {
        return ErrorAt(id_at, "expected floating-point numbers to watch, got: " +
                                  values_.at(id).info.type.ToString());
      }
      program_.watched.push_back({name, id});
      return NeedEndOfLine();
    }
    const auto state = std::find_if(program_.states.begin(), program_.states.end(),
                                    [&](const State& s) { return s.name == name; });
    if (state == program_.states.end()) {
      std::vector<std::string> names;
      for (const State& s : program_.states) names.push_back(s.name);
      return ErrorAt(name_at, "expected a state, got: `" + name + "`" + DidYouMean(name, names));
    }
    const TensorType& want = values_.at(state->entry).info.type;
    if (values_.at(id).info.type != want) {
      return ErrorAt(id_at, "expected an update of type " + want.ToString() +
                                ", got: " + values_.at(id).info.type.ToString());
    }
    state->exit = id;
    return NeedEndOfLine();
  }

  Status OpLine() {
    Op op;
    std::vector<size_t> result_at;
    do {
      SkipSpaces();
      result_at.push_back(at_);
      MT_ASSIGN_OR_RETURN(const ValueId id, Id());
      op.results.push_back(id);
    } while (Take(","));
    MT_RETURN_IF_ERROR(Need("="));
    SkipSpaces();
    const size_t kind_at = at_;
    op.kind = Word();
    const auto def = Registry::Standard().Get(op.kind);
    if (!def.ok()) return ErrorAt(kind_at, def.status().message());
    MT_RETURN_IF_ERROR(Need("("));
    std::vector<TensorType> operand_types;
    if (!Take(")")) {
      do {
        MT_ASSIGN_OR_RETURN(const ValueId id, KnownId());
        op.operands.push_back(id);
        operand_types.push_back(values_.at(id).info.type);
      } while (Take(","));
      MT_RETURN_IF_ERROR(Need(")"));
    }
    const auto given = static_cast<int>(op.operands.size());
    if (given < (*def)->min_operands ||
        ((*def)->max_operands >= 0 && given > (*def)->max_operands)) {
      return ErrorAt(kind_at,
                     op.kind + ": wrong number of operands, got: " + std::to_string(given));
    }
    MT_ASSIGN_OR_RETURN(op.attrs, AttrList());
    auto inferred = (*def)->infer({operand_types, op.attrs});
    if (!inferred.ok()) return ErrorAt(kind_at, op.kind + ": " + inferred.status().message());
    if (inferred->size() != op.results.size()) {
      return ErrorAt(result_at[0], op.kind + ": expected " + std::to_string(inferred->size()) +
                                       " results, got: " + std::to_string(op.results.size()));
    }
    MT_RETURN_IF_ERROR(Need(":"));
    for (size_t r = 0; r < op.results.size(); ++r) {
      if (r > 0) MT_RETURN_IF_ERROR(Need(","));
      SkipSpaces();
      const size_t type_at = at_;
      MT_ASSIGN_OR_RETURN(TensorType type, Type());
      if (type != (*inferred)[r]) {
        return ErrorAt(type_at, op.kind + ": expected a result of type " +
                                    (*inferred)[r].ToString() + ", got: " + type.ToString());
      }
      MT_RETURN_IF_ERROR(Define(op.results[r], std::move(type),
                                static_cast<int32_t>(program_.ops.size()), result_at[r]));
    }
    if (Take("@")) {
      MT_ASSIGN_OR_RETURN(op.path, Quoted());
    }
    program_.ops.push_back(std::move(op));
    return NeedEndOfLine();
  }

  std::string_view text_;
  size_t at_ = 0;
  Program program_;
  std::map<ValueId, Known> values_;
  std::set<std::string> names_;
};

}  // namespace

Result<Program> ParseProgram(std::string_view text) { return Parser(text).Parse(); }

}  // namespace meshtrain::program
