#include "runtime/program/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/base/check.h"
#include "runtime/program/limits.h"
#include "runtime/program/registry.h"

namespace meshtrain::program {
namespace {

std::string DoubleText(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".einf") == std::string::npos) {
    text += ".0";  // keeps 1.0 apart from the integer 1
  }
  return text;
}

template <typename T, typename Format>
std::string ListText(const std::vector<T>& items, Format format) {
  std::string text = "[";
  for (size_t i = 0; i < items.size(); ++i) text += (i > 0 ? "," : "") + format(items[i]);
  return text + "]";
}

std::string QuotedText(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text + '"';
}

// A name as it is when it reads as one word, else in quotes.
std::string NameText(const std::string& name) {
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_./-").find(c) != std::string_view::npos;
  });
  return plain ? name : QuotedText(name);
}

}  // namespace

// bool true; int 3; double 3.0; text "a\"b\n"; ints [1,2]; doubles d[1.0,2.0]
std::string AttrText(const Attr& attr) {
  struct Visitor {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const { return DoubleText(v); }
    std::string operator()(const std::string& v) const { return QuotedText(v); }
    std::string operator()(const std::vector<int64_t>& v) const {
      return ListText(v, [](int64_t i) { return std::to_string(i); });
    }
    std::string operator()(const std::vector<double>& v) const {
      return "d" + ListText(v, DoubleText);
    }
  };
  return std::visit(Visitor{}, attr);
}

void Attrs::Erase(std::string_view name) {
  if (const auto it = items_.find(name); it != items_.end()) items_.erase(it);
}

namespace {
template <typename T>
const T* Find(const std::map<std::string, Attr, std::less<>>& items, std::string_view name) {
  const auto it = items.find(name);
  if (it == items.end()) return nullptr;
  const T* value = std::get_if<T>(&it->second);
  MT_CHECK(value != nullptr);
  return value;
}
}  // namespace

bool Attrs::Bool(std::string_view name, bool fallback) const {
  const bool* v = Find<bool>(items_, name);
  return v ? *v : fallback;
}
int64_t Attrs::Int(std::string_view name, int64_t fallback) const {
  const int64_t* v = Find<int64_t>(items_, name);
  return v ? *v : fallback;
}
double Attrs::Double(std::string_view name, double fallback) const {
  const double* v = Find<double>(items_, name);
  return v ? *v : fallback;
}
std::string Attrs::Text(std::string_view name, std::string_view fallback) const {
  const std::string* v = Find<std::string>(items_, name);
  return v ? *v : std::string(fallback);
}
std::vector<int64_t> Attrs::Ints(std::string_view name) const {
  const auto* v = Find<std::vector<int64_t>>(items_, name);
  return v ? *v : std::vector<int64_t>();
}
std::vector<double> Attrs::Doubles(std::string_view name) const {
  const auto* v = Find<std::vector<double>>(items_, name);
  return v ? *v : std::vector<double>();
}

std::string SourceLine::ToString() const {
  if (file.empty()) return "";
  return file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(line);
}

std::string Program::ToString() const {
  std::string text = fmt::format("program {}\n", NameText(name));
  const auto entry = [&](const char* kind, const std::string& port, ValueId v) {
    text += fmt::format("{} {}: {} = %{}\n", kind, NameText(port), type(v).ToString(), v);
  };
  for (const Port& p : inputs) entry("input", p.name, p.value);
  for (const State& s : states) entry("state", s.name, s.entry);
  for (const Op& op : ops) {
    std::string results, operands, types, attrs;
    for (const ValueId v : op.results) {
      results += fmt::format("{}%{}", results.empty() ? "" : ", ", v);
      types += fmt::format("{}{}", types.empty() ? "" : ", ", type(v).ToString());
    }
    for (const ValueId v : op.operands) {
      operands += fmt::format("{}%{}", operands.empty() ? "" : ", ", v);
    }
    for (const auto& [key, value] : op.attrs.items()) {
      attrs += fmt::format("{}{}={}", attrs.empty() ? "" : ", ", key, AttrText(value));
    }
    text += fmt::format("{} = {}({})", results, op.kind, operands);
    if (!attrs.empty()) text += fmt::format(" {{{}}}", attrs);
    text += fmt::format(" : {}", types);
    if (!op.path.empty()) text += fmt::format(" @{}", QuotedText(op.path));
    text += '\n';
  }
  for (const Port& p : outputs) text += fmt::format("output {} = %{}\n", NameText(p.name), p.value);
  for (const State& s : states) {
    if (s.exit != s.entry) text += fmt::format("update {} = %{}\n", NameText(s.name), s.exit);
  }
  for (const Port& p : watched) text += fmt::format("watch {} = %{}\n", NameText(p.name), p.value);
  return text;
}

std::vector<std::vector<int>> Program::Uses() const {
  std::vector<std::vector<int>> uses(values.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    for (const ValueId v : ops[i].operands) {
      if (uses[v].empty() || uses[v].back() != static_cast<int>(i)) {
        uses[v].push_back(static_cast<int>(i));
      }
    }
  }
  return uses;
}

Status Validate(const Program& program) {
  const auto count = static_cast<ValueId>(program.values.size());
  std::vector<bool> defined(program.values.size(), false);
  const auto define = [&](ValueId v, const std::string& what) -> Status {
    if (v < 0 || v >= count) {
      return InvalidArgument(what + ": expected a value of the program, got: %" +
                             std::to_string(v));
    }
    if (defined[v]) return InvalidArgument(what + ": %" + std::to_string(v) + " has two producers");
    defined[v] = true;
    return CheckLimits(program.type(v)).At(what);
  };
  const auto use = [&](ValueId v, const std::string& what) -> Status {
    if (v < 0 || v >= count || !defined[v]) {
      return InvalidArgument(what + ": %" + std::to_string(v) + " is used before it is produced");
    }
    return OkStatus();
  };
  std::set<std::string> names;
  const auto name_once = [&](const std::string& kind, const std::string& name) -> Status {
    if (name.empty()) return InvalidArgument(kind + ": expected a name, got: none");
    if (!names.insert(kind + " " + name).second) {
      return InvalidArgument(kind + " `" + name + "` is named twice");
    }
    return OkStatus();
  };
  for (const Port& p : program.inputs) {
    MT_RETURN_IF_ERROR(name_once("input", p.name));
    MT_RETURN_IF_ERROR(define(p.value, "input `" + p.name + "`"));
  }
  for (const State& s : program.states) {
    MT_RETURN_IF_ERROR(name_once("state", s.name));
    MT_RETURN_IF_ERROR(define(s.entry, "state `" + s.name + "`"));
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    std::string what = "op " + std::to_string(i) + " " + op.kind;
    if (!op.where.file.empty()) what += " at " + op.where.ToString();
    const auto def = Registry::Standard().Get(op.kind);
    if (!def.ok()) return def.status().At(what);
    std::vector<TensorType> operand_types;
    for (const ValueId v : op.operands) {
      MT_RETURN_IF_ERROR(use(v, what));
      operand_types.push_back(program.type(v));
    }
    const auto given = static_cast<int>(op.operands.size());
    if (given < (*def)->min_operands ||
        ((*def)->max_operands >= 0 && given > (*def)->max_operands)) {
      return InvalidArgument(what + ": wrong number of operands, got: " + std::to_string(given));
    }
    auto types = (*def)->infer({operand_types, op.attrs});
    if (!types.ok()) return types.status().At(what);
    if (types->size() != op.results.size()) {
      return InvalidArgument(what + ": expected " + std::to_string(types->size()) +
                             " results, got: " + std::to_string(op.results.size()));
    }
    for (size_t r = 0; r < op.results.size(); ++r) {
      MT_RETURN_IF_ERROR(define(op.results[r], what));
      if (program.type(op.results[r]) != (*types)[r]) {
        return InvalidArgument(what + ": expected a result of type " + (*types)[r].ToString() +
                               ", got: " + program.type(op.results[r]).ToString());
      }
      if (program.values[op.results[r]].op != static_cast<int32_t>(i)) {
        return InvalidArgument(what + ": the producer of %" + std::to_string(op.results[r]) +
                               " is recorded wrongly");
      }
    }
  }
  for (const Port& p : program.outputs) {
    MT_RETURN_IF_ERROR(name_once("output", p.name));
    MT_RETURN_IF_ERROR(use(p.value, "output `" + p.name + "`"));
  }
  for (const State& s : program.states) {
    MT_RETURN_IF_ERROR(use(s.exit, "state `" + s.name + "`"));
    if (program.type(s.exit) != program.type(s.entry)) {
      return InvalidArgument("state `" + s.name + "`: expected an update of type " +
                             program.type(s.entry).ToString() +
                             ", got: " + program.type(s.exit).ToString());
    }
  }
  for (const Port& p : program.watched) {
    MT_RETURN_IF_ERROR(use(p.value, "watch `" + p.name + "`"));
    if (p.name.empty() || !mesh::IsFloat(program.type(p.value).dtype)) {
      return InvalidArgument("watch `" + p.name +
                             "`: expected a name and floating-point numbers, " +
                             "got: " + program.type(p.value).ToString());
    }
  }
  return OkStatus();
}

Program WithoutDeadOps(const Program& program) {
  std::vector<bool> needed(program.values.size(), false);
  for (const Port& p : program.outputs) needed[p.value] = true;
  for (const State& s : program.states) needed[s.exit] = true;
  std::vector<bool> keep(program.ops.size(), false);
  for (size_t i = program.ops.size(); i-- > 0;) {
    const Op& op = program.ops[i];
    keep[i] =
        std::any_of(op.results.begin(), op.results.end(), [&](ValueId v) { return needed[v]; });
    if (!keep[i]) continue;
    for (const ValueId v : op.operands) needed[v] = true;
  }
  Program out;
  out.name = program.name;
  std::vector<ValueId> renamed(program.values.size(), kNoValue);
  const auto add = [&](ValueId v, int32_t op) {
    renamed[v] = static_cast<ValueId>(out.values.size());
    out.values.push_back({program.type(v), op});
    return renamed[v];
  };
  for (const Port& p : program.inputs) out.inputs.push_back({p.name, add(p.value, -1)});
  for (const State& s : program.states) out.states.push_back({s.name, add(s.entry, -1), kNoValue});
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (!keep[i]) continue;
    Op op = program.ops[i];
    for (ValueId& v : op.operands) v = renamed[v];
    for (ValueId& v : op.results) v = add(v, static_cast<int32_t>(out.ops.size()));
    out.ops.push_back(std::move(op));
  }
  for (const Port& p : program.outputs) out.outputs.push_back({p.name, renamed[p.value]});
  for (size_t i = 0; i < program.states.size(); ++i) {
    out.states[i].exit = renamed[program.states[i].exit];
  }
  for (const Port& p : program.watched) {
    if (renamed[p.value] != kNoValue) out.watched.push_back({p.name, renamed[p.value]});
  }
  return out;
}

}  // namespace meshtrain::program
