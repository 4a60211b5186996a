#include "runtime/choice/choice.h"

#include <utility>

namespace meshtrain::choice {
namespace {

template <typename T>
std::optional<T> Given(const Options& options, std::string_view name) {
  const Value* value = options.Find(name);
  const T* held = value == nullptr ? nullptr : std::get_if<T>(value);
  return held == nullptr ? std::nullopt : std::optional<T>(*held);
}

}  // namespace

void Options::Set(std::string_view name, Value value) {
  values_.insert_or_assign(std::string(name), std::move(value));
}

const Value* Options::Find(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

std::vector<std::string> Options::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : values_) names.push_back(name);
  return names;
}

bool Options::Bool(std::string_view name, bool fallback) const {
  return Given<bool>(*this, name).value_or(fallback);
}
int64_t Options::Int(std::string_view name, int64_t fallback) const {
  return MaybeInt(name).value_or(fallback);
}
std::optional<int64_t> Options::MaybeInt(std::string_view name) const {
  return Given<int64_t>(*this, name);
}
double Options::Number(std::string_view name, double fallback) const {
  return MaybeNumber(name).value_or(fallback);
}
std::optional<double> Options::MaybeNumber(std::string_view name) const {
  return Given<double>(*this, name);
}
std::string Options::Text(std::string_view name, std::string_view fallback) const {
  return Given<std::string>(*this, name).value_or(std::string(fallback));
}
std::optional<std::vector<int64_t>> Options::Ints(std::string_view name) const {
  return Given<std::vector<int64_t>>(*this, name);
}
std::optional<std::vector<double>> Options::Numbers(std::string_view name) const {
  return Given<std::vector<double>>(*this, name);
}
std::optional<std::vector<std::string>> Options::Texts(std::string_view name) const {
  return Given<std::vector<std::string>>(*this, name);
}
const Choice* Options::Chosen(std::string_view name) const {
  const Value* value = Find(name);
  const auto* held = value == nullptr ? nullptr : std::get_if<std::vector<Choice>>(value);
  return held == nullptr || held->empty() ? nullptr : held->data();
}

bool operator==(const Options& a, const Options& b) { return a.values_ == b.values_; }

}  // namespace meshtrain::choice
