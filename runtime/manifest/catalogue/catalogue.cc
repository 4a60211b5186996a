#include "runtime/manifest/catalogue/catalogue.h"

#include <algorithm>

#include "runtime/manifest/catalogue/own_rows.h"
#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/fields/fields.h"

namespace meshtrain::manifest {
namespace {

#define MT_ENTRY(entry, maker) entry(),
std::vector<Entry> BuiltInLayers() {
  using namespace layers;  // NOLINT(google-build-using-namespace)
  return {MT_LAYERS(MT_ENTRY)};
}
std::vector<Entry> BuiltInOptimizers() {
  using namespace optimizers;  // NOLINT(google-build-using-namespace)
  return {MT_OPTIMIZERS(MT_ENTRY)};
}
std::vector<Entry> BuiltInLosses() {
  using namespace losses;  // NOLINT(google-build-using-namespace)
  return {MT_LOSSES(MT_ENTRY)};
}
std::vector<Entry> BuiltInMetrics() {
  using namespace metrics;  // NOLINT(google-build-using-namespace)
  return {MT_METRICS(MT_ENTRY)};
}
std::vector<Entry> BuiltInSources() {
  using namespace sources;  // NOLINT(google-build-using-namespace)
  return {MT_SOURCES(MT_ENTRY)};
}
#undef MT_ENTRY

Catalogue With(std::string_view noun, std::vector<Entry> entries, const std::vector<Entry>& own) {
  entries.insert(entries.end(), own.begin(), own.end());
  return {.noun = noun, .entries = std::move(entries)};
}

// What this process has added. Written by AddEntries, before anything reads it.
struct Added {
  OwnEntries entries;
  bool read = false;
};
Added& TheAdded() {
  static Added added;
  return added;
}

Status CheckName(std::string_view noun, std::string_view name,
                 const std::vector<std::string_view>& taken) {
  if (!IsPlainName(name)) {
    return InvalidArgument("rows: " + std::string(noun) + " `" + std::string(name) +
                           "`: expected a name of small letters, digits and _");
  }
  for (const std::string_view other : taken) {
    if (other != name) continue;
    return InvalidArgument("rows: " + std::string(noun) + " `" + std::string(name) +
                           "`: the name is taken");
  }
  return OkStatus();
}

// `other_options`: names that every entry has beside its own options; `other_entries`: names that
// are none of entries, but taken.
Status CheckEntries(std::string_view noun, const std::vector<Entry>& all, size_t own,
                    const std::vector<std::string_view>& other_options,
                    const std::vector<std::string_view>& other_entries) {
  std::vector<std::string_view> taken = other_entries;
  for (size_t i = 0; i < all.size(); ++i) {
    const Entry& entry = all[i];
    if (i >= own) {
      MT_RETURN_IF_ERROR(CheckName(noun, entry.name, taken));
      const std::string where = std::string(noun) + " `" + std::string(entry.name) + "`";
      if (entry.about.empty()) {
        return InvalidArgument("rows: " + where + ": expected a sentence about it, got: none");
      }
      std::vector<std::string_view> options = other_options;
      for (const Field& option : entry.options) {
        MT_RETURN_IF_ERROR(CheckName(where + ", option", option.name, options));
        options.push_back(option.name);
      }
    }
    taken.push_back(entry.name);
  }
  return OkStatus();
}

// `from` after `all`; checks what is new.
Status Append(std::string_view noun, std::vector<Entry> built_in, const std::vector<Entry>& from,
              const std::vector<std::string_view>& other_options,
              const std::vector<std::string_view>& other_entries, std::vector<Entry>* to) {
  const size_t own = built_in.size() + to->size();
  to->insert(to->end(), from.begin(), from.end());
  return CheckEntries(noun, With(noun, std::move(built_in), *to).entries, own, other_options,
                      other_entries);
}

}  // namespace

Status AddEntries(OwnEntries entries) {
  Added& added = TheAdded();
  if (added.read) {
    return FailedPrecondition(
        "rows: expected to be added before the first manifest is read, got: one was read");
  }
  OwnEntries all = added.entries;
  MT_RETURN_IF_ERROR(
      Append("layer", BuiltInLayers(), entries.layers, {"name", "inputs"}, {}, &all.layers));
  MT_RETURN_IF_ERROR(
      Append("optimizer", BuiltInOptimizers(), entries.optimizers, {}, {}, &all.optimizers));
  MT_RETURN_IF_ERROR(Append("loss", BuiltInLosses(), entries.losses, {}, {}, &all.losses));
  MT_RETURN_IF_ERROR(
      Append("metric", BuiltInMetrics(), entries.metrics, {}, {"loss"}, &all.metrics));
  MT_RETURN_IF_ERROR(
      Append("source", BuiltInSources(), entries.sources, {}, {"take"}, &all.sources));
  for (const Entry& source : entries.sources) {
    std::vector<std::string_view> taken;
    for (const std::string& component : source.components) {
      MT_RETURN_IF_ERROR(CheckName("component", component, taken));
      taken.push_back(component);
    }
    if (taken.size() > 1 && std::find(taken.begin(), taken.end(), "y") != taken.end()) continue;
    return InvalidArgument("rows: source `" + std::string(source.name) +
                           "`: expected components, the labels `y` among them");
  }
  std::vector<std::string_view> fields = BuiltInProgramFieldNames();
  for (const Field& field : all.fields) fields.push_back(field.name);
  for (Field& field : entries.fields) {
    MT_RETURN_IF_ERROR(CheckName("field", field.name, fields));
    if (field.says.about.empty()) {
      return InvalidArgument("rows: field `" + std::string(field.name) +
                             "`: expected a sentence about it, got: none");
    }
    fields.push_back(field.name);
    all.fields.push_back(std::move(field));
  }
  added.entries = std::move(all);
  return OkStatus();
}

const OwnEntries& AllOwnEntries() {
  // Said once, by whoever is first of any number of threads.
  static const Added& added = [&]() -> Added& {
    TheAdded().read = true;
    return TheAdded();
  }();
  return added.entries;
}

const Catalogue& Layers() {
  static const Catalogue kLayers = With("layer", BuiltInLayers(), AllOwnEntries().layers);
  return kLayers;
}
const Catalogue& Optimizers() {
  static const Catalogue kOptimizers =
      With("optimizer", BuiltInOptimizers(), AllOwnEntries().optimizers);
  return kOptimizers;
}
const Catalogue& Losses() {
  static const Catalogue kLosses = With("loss", BuiltInLosses(), AllOwnEntries().losses);
  return kLosses;
}
const Catalogue& Metrics() {
  static const Catalogue kMetrics = With("metric", BuiltInMetrics(), AllOwnEntries().metrics);
  return kMetrics;
}
const Catalogue& Sources() {
  static const Catalogue kSources = With("source", BuiltInSources(), AllOwnEntries().sources);
  return kSources;
}

}  // namespace meshtrain::manifest
