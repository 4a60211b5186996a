#include "cli/cluster/redact.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/text.h"

namespace meshtrain::cli {
namespace {

constexpr std::string_view kRedacted = "REDACTED";

bool InName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-' || c == '/';
}
bool Blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// "token", but for what counts or makes them: tokens, max_tokens, tokenizer.
bool NamesAToken(std::string_view lower) {
  for (size_t at = 0; (at = lower.find("token", at)) != std::string_view::npos; ++at) {
    const std::string_view rest = lower.substr(at + 5);
    const bool many =
        rest == "s" || rest.starts_with("s-") || rest.starts_with("s.") || rest.starts_with("s/");
    if (!many && !rest.starts_with("iz")) return true;
  }
  return false;
}

bool NamesASecret(std::string_view name) {
  const std::string lower = ToLower(name);
  if (NamesAToken(lower)) return true;
  std::string joined, word;
  bool key = false;
  for (const char c : lower + "-") {
    if (InName(c) && c != '_' && c != '-' && c != '.' && c != '/') {
      word += c;
      continue;
    }
    key = key || word == "key";
    joined += word;
    word.clear();
  }
  if (key) return true;
  for (const char* part : {"password", "passwd", "secret", "credential", "apikey", "accesskey",
                           "privatekey", "encryptionkey", "signingkey"}) {
    if (joined.find(part) != std::string::npos) return true;
  }
  return false;
}

// Reads a line from left to right and writes it again.
class LineScanner {
 public:
  explicit LineScanner(std::string_view line) : line_(line) {}

  std::string Scan() {
    while (at_ < line_.size()) {
      if (line_.substr(at_).starts_with("://")) {
        Authority();
      } else if (InName(line_[at_])) {
        Name();
      } else {
        Copy(at_ + 1);
      }
    }
    return std::move(out_);
  }

 private:
  void Copy(size_t end) {
    out_ += line_.substr(at_, end - at_);
    at_ = end;
  }
  size_t SkipBlanks(size_t at) const {
    while (at < line_.size() && Blank(line_[at])) ++at;
    return at;
  }
  // The length of a quote that begins there, which may be escaped; 0: none does.
  size_t QuoteAt(size_t at) const {
    const size_t slash = at < line_.size() && line_[at] == '\\' ? 1 : 0;
    at += slash;
    return at < line_.size() && (line_[at] == '"' || line_[at] == '\'') ? slash + 1 : 0;
  }

  // ://user:password@host
  void Authority() {
    Copy(at_ + 3);
    size_t end = at_;
    while (end < line_.size() && !Blank(line_[end]) && line_[end] != '/' && QuoteAt(end) == 0) {
      ++end;
    }
    const std::string_view authority = line_.substr(at_, end - at_);
    const size_t colon = authority.find(':'), host = authority.rfind('@');
    if (host == std::string_view::npos || colon == std::string_view::npos || colon > host) return;
    Copy(at_ + colon + 1);
    out_ += kRedacted;
    at_ += host - colon - 1;
  }

  void Name() {
    size_t end = at_;
    while (end < line_.size() && InName(line_[end])) ++end;
    const std::string_view name = line_.substr(at_, end - at_);
    Copy(end);
    const size_t behind = SkipBlanks(at_);
    if (ToLower(name) == "bearer" && behind > at_) {
      Copy(behind);
      Value(/*more=*/"~+=");
      return;
    }
    if (!NamesASecret(name)) return;
    const size_t quote = QuoteAt(at_);
    const size_t next = SkipBlanks(at_ + quote);
    if (next >= line_.size()) return;
    if (line_[next] == '=' || line_[next] == ':') {
      if (quote > 0 && name == "key") return;  // of a selector
      const size_t value = SkipBlanks(next + 1);
      // "secret": {...} holds members of its own; a flag that is true or false is none.
      const std::string_view rest = line_.substr(value);
      if (quote > 0 &&
          (rest.starts_with('{') || rest.starts_with('[') || rest.starts_with("true") ||
           rest.starts_with("false") || rest.starts_with("null"))) {
        return;
      }
      Copy(value);
      Value();
    } else if (name.starts_with('-') && quote == 0 && next > at_ && line_[next] != '-') {
      Copy(next);  // --password abc
      Value();
    } else if (quote > 0 && line_[next] == ',') {
      NextElement(name, next);
    }
  }

  // Behind `"--password"` or `"X_TOKEN"`, at the comma: a list's next element is a flag's value,
  // and "value" is the value of the variable of this name.
  void NextElement(std::string_view name, size_t comma) {
    size_t next = SkipBlanks(comma + 1);
    const size_t quote = QuoteAt(next);
    if (quote == 0) return;
    const std::string_view word = line_.substr(next + quote);
    if (word.starts_with("value")) {
      const size_t closed = next + quote + 5;
      next = SkipBlanks(closed + QuoteAt(closed));
      if (next >= line_.size() || line_[next] != ':') return;
      Copy(SkipBlanks(next + 1));
      Value();
    } else if (name.starts_with('-') && !word.starts_with('-')) {
      Copy(next);
      Value();
    }
  }

  // Writes that a value stands here, and goes behind it. One in quotes ends with the same quote,
  // any other with a blank or a quote; where `more` is given, it is characters of names and those.
  void Value(std::string_view more = {}) {
    const size_t quote = more.empty() ? QuoteAt(at_) : 0;
    if (quote == 0) {
      const size_t from = at_;
      const auto goes_on = [&](char c) {
        return more.empty() ? !Blank(c) && c != '"' && c != '\''
                            : InName(c) || more.find(c) != std::string_view::npos;
      };
      while (at_ < line_.size() && goes_on(line_[at_])) ++at_;
      if (at_ == from) return;
      out_ += kRedacted;
      // token: Bearer abc
      const std::string scheme = ToLower(line_.substr(from, at_ - from));
      if (scheme == "bearer" || scheme == "basic") {
        Copy(SkipBlanks(at_));
        Value();
      }
      return;
    }
    const std::string_view mark = line_.substr(at_, quote);
    Copy(at_ + quote);
    out_ += kRedacted;
    while (at_ < line_.size() && !line_.substr(at_).starts_with(mark)) {
      at_ += quote == 1 && line_[at_] == '\\' ? 2 : 1;
    }
    at_ = std::min(at_, line_.size());
  }

  const std::string_view line_;
  size_t at_ = 0;
  std::string out_;
};

void RedactTree(nlohmann::ordered_json& node) {
  const auto hide = [](nlohmann::ordered_json& value) {
    if (value.is_string()) value = kRedacted;
  };
  if (node.is_string()) {
    node = Redacted(node.get_ref<const std::string&>());
  } else if (node.is_array()) {
    bool secret = false;  // the element before was a flag that says so
    for (auto& item : node) {
      const std::string word = item.is_string() ? item.get<std::string>() : std::string();
      const size_t assigned = word.find('=');
      const bool flag = word.starts_with('-');
      const bool of_secret =
          flag && NamesASecret(word.substr(0, assigned)) && word.find_first_of(": ") >= assigned;
      if (secret && !flag) {
        hide(item);
      } else if (of_secret && assigned != std::string::npos) {
        item = word.substr(0, assigned + 1) + std::string(kRedacted);  // blanks are of the value
      } else {
        RedactTree(item);
      }
      secret = of_secret && assigned == std::string::npos;
    }
  } else if (node.is_object()) {
    const auto name = node.find("name");
    const bool variable = name != node.end() && name->is_string() &&
                          NamesASecret(name->get_ref<const std::string&>());
    for (const auto& [key, value] : node.items()) {
      if (value.is_string() &&
          ((key != "key" && NamesASecret(key)) || (variable && key == "value"))) {
        hide(value);
      } else {
        RedactTree(value);
      }
    }
  }
}

}  // namespace

std::string Redacted(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out += LineScanner(text.substr(0, end)).Scan();
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string RedactedObject(std::string_view json) {
  auto object = nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (object.is_object() && object.contains("metadata") && object["metadata"].is_object()) {
    object["metadata"].erase("managedFields");
    const auto annotations = object["metadata"].find("annotations");
    if (annotations != object["metadata"].end() && annotations->is_object()) {
      annotations->erase("kubectl.kubernetes.io/last-applied-configuration");
    }
  }
  RedactTree(object);
  return object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace meshtrain::cli
