#include "runtime/manifest/program.h"

#include <tuple>

namespace meshtrain::manifest {
namespace {

template <typename T>
std::optional<T> Given(const Options& options, std::string_view name) {
  const Value* value = options.Find(name);
  const T* held = value == nullptr ? nullptr : std::get_if<T>(value);
  return held == nullptr ? std::nullopt : std::optional<T>(*held);
}

auto Said(const Program& p) {
  return std::tie(p.seed, p.mesh, p.devices, p.data, p.model, p.loss, p.optimizer, p.metrics,
                  p.layout, p.train, p.parameter_server, p.mirrored, p.multi_worker_mirrored,
                  p.initial_weights, p.strict);
}

}  // namespace

void Options::Set(std::string_view name, Value value) {
  values_.insert_or_assign(std::string(name), std::move(value));
}

const Value* Options::Find(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
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
std::optional<std::vector<std::string>> Options::Texts(std::string_view name) const {
  return Given<std::vector<std::string>>(*this, name);
}
const Choice* Options::Chosen(std::string_view name) const {
  const Value* value = Find(name);
  const auto* held = value == nullptr ? nullptr : std::get_if<std::vector<Choice>>(value);
  return held == nullptr || held->empty() ? nullptr : held->data();
}

bool operator==(const Options& a, const Options& b) { return a.values_ == b.values_; }
bool operator==(const Program& a, const Program& b) { return Said(a) == Said(b); }

Packing Program::packing() const {
  if (mirrored) return mirrored->packing;
  return multi_worker_mirrored ? multi_worker_mirrored->packing : Packing{};
}

Place Program::PlaceOf(std::string_view field) const {
  for (;;) {
    const auto found = places.find(std::string(field));
    if (found != places.end()) return found->second;
    if (field.empty()) return {};
    const size_t dot = field.rfind('.');
    field = dot == std::string_view::npos ? "" : field.substr(0, dot);
  }
}

std::string Program::Where(std::string_view field) const {
  return At(file, PlaceOf(field), "") + path + "." + std::string(field);
}

}  // namespace meshtrain::manifest
