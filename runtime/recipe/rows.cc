#include "runtime/recipe/rows.h"

#include <map>

#include "runtime/base/check.h"
#include "runtime/manifest/catalogue/own_rows.h"
#include "runtime/manifest/catalogue/rows.h"
#include "runtime/recipe/recipe.h"

// What makes each built-in row; the functions stand in the files of what they make.
namespace meshtrain::nn::by_name {
#define MT_MAKER(entry, maker) LayerPtr maker(const std::string& name, const Options& options);
MT_LAYERS(MT_MAKER)
#undef MT_MAKER
}  // namespace meshtrain::nn::by_name
namespace meshtrain::train::by_name {
#define MT_MAKER(entry, maker) std::shared_ptr<Optimizer> maker(const Options& options);
MT_OPTIMIZERS(MT_MAKER)
#undef MT_MAKER
}  // namespace meshtrain::train::by_name
namespace meshtrain::train::losses::by_name {
#define MT_MAKER(entry, maker) Loss maker(const Options& options);
MT_LOSSES(MT_MAKER)
#undef MT_MAKER
}  // namespace meshtrain::train::losses::by_name
namespace meshtrain::train::metrics::by_name {
#define MT_MAKER(entry, maker) Metric maker(const std::string& name, const Options& options);
MT_METRICS(MT_MAKER)
#undef MT_MAKER
}  // namespace meshtrain::train::metrics::by_name
namespace meshtrain::data::by_name {
#define MT_MAKER(entry, maker) SourceOptions maker(const Options& options);
MT_SOURCES(MT_MAKER)
#undef MT_MAKER
}  // namespace meshtrain::data::by_name

namespace meshtrain::recipe {
namespace {

template <typename Make>
using Makers = std::map<std::string, Make, std::less<>>;

using FieldAct = Status (*)(const Options& given, train::Recipe* recipe);

// By name: what was added by AddRows, before anything reads it.
struct Added {
  Makers<nn::MakeLayer> layers;
  Makers<train::MakeOptimizer> optimizers;
  Makers<train::MakeLoss> losses;
  Makers<train::MakeMetric> metrics;
  Makers<data::MakeSource> sources;
  Makers<FieldAct> fields;
};
Added& TheAdded() {
  static Added added;
  return added;
}

// The built-in ones, and what was added: no more can be.
const Added& All() {
  static const Added kAll = [] {
    manifest::AllOwnEntries();
    Added all = TheAdded();
#define MT_MAKER(entry, maker) \
  all.layers.emplace(manifest::layers::entry().name, nn::by_name::maker);
    MT_LAYERS(MT_MAKER)
#undef MT_MAKER
#define MT_MAKER(entry, maker) \
  all.optimizers.emplace(manifest::optimizers::entry().name, train::by_name::maker);
    MT_OPTIMIZERS(MT_MAKER)
#undef MT_MAKER
#define MT_MAKER(entry, maker) \
  all.losses.emplace(manifest::losses::entry().name, train::losses::by_name::maker);
    MT_LOSSES(MT_MAKER)
#undef MT_MAKER
#define MT_MAKER(entry, maker) \
  all.metrics.emplace(manifest::metrics::entry().name, train::metrics::by_name::maker);
    MT_METRICS(MT_MAKER)
#undef MT_MAKER
#define MT_MAKER(entry, maker) \
  all.sources.emplace(manifest::sources::entry().name, data::by_name::maker);
    MT_SOURCES(MT_MAKER)
#undef MT_MAKER
    return all;
  }();
  return kAll;
}

// Null where nothing is chosen: a name that the text has is one of the rows.
template <typename Make>
Make Find(const Makers<Make>& makers, std::string_view name) {
  const auto found = makers.find(name);
  MT_CHECK(found != makers.end() || name.empty());
  return found == makers.end() ? nullptr : found->second;
}

// A row into what manifest reads and what makes it.
struct Sort {
  manifest::OwnEntries& entries;
  Added& makers;

  Status operator()(LayerRow& row) { return Take(row, entries.layers, makers.layers); }
  Status operator()(OptimizerRow& row) { return Take(row, entries.optimizers, makers.optimizers); }
  Status operator()(LossRow& row) { return Take(row, entries.losses, makers.losses); }
  Status operator()(MetricRow& row) { return Take(row, entries.metrics, makers.metrics); }
  Status operator()(SourceRow& row) { return Take(row, entries.sources, makers.sources); }
  Status operator()(FieldRow& row) {
    if (row.act == nullptr) return Missing(row.field.name);
    makers.fields.emplace(row.field.name, row.act);
    entries.fields.push_back(std::move(row.field));
    return OkStatus();
  }

 private:
  static Status Missing(std::string_view name) {
    return InvalidArgument("rows: `" + std::string(name) +
                           "`: expected a function that makes it or lets it act, got: none");
  }
  template <typename Row, typename Make>
  static Status Take(Row& row, std::vector<manifest::Entry>& to, Makers<Make>& made) {
    if (row.make == nullptr) return Missing(row.entry.name);
    made.emplace(row.entry.name, row.make);
    to.push_back(std::move(row.entry));
    return OkStatus();
  }
};

}  // namespace

Status AddRows(std::vector<Row> rows) {
  manifest::OwnEntries entries;
  Added makers = TheAdded();
  for (Row& row : rows) MT_RETURN_IF_ERROR(std::visit(Sort{entries, makers}, row));
  MT_RETURN_IF_ERROR(manifest::AddEntries(std::move(entries)));
  TheAdded() = std::move(makers);
  return OkStatus();
}

nn::LayerPtr MakeLayer(const manifest::Layer& layer) {
  const nn::MakeLayer make = Find(All().layers, layer.kind);
  return make == nullptr ? nullptr : make(layer.name, layer.options);
}

std::shared_ptr<train::Optimizer> MakeOptimizer(const manifest::Choice& optimizer) {
  const train::MakeOptimizer make = Find(All().optimizers, optimizer.kind);
  return make == nullptr ? nullptr : make(optimizer.options);
}

train::Loss LossOf(const manifest::Choice& loss) {
  const train::MakeLoss make = Find(All().losses, loss.kind);
  return make == nullptr ? train::Loss{} : make(loss.options);
}

train::Metric MetricOf(const manifest::Choice& metric) {
  const train::MakeMetric make = Find(All().metrics, metric.kind);
  if (make == nullptr) return {};
  return make(manifest::FigureName(metric), metric.options);
}

data::SourceOptions SourceOf(const manifest::Choice& source) {
  const data::MakeSource make = Find(All().sources, source.kind);
  return make == nullptr ? data::SourceOptions{} : make(source.options);
}

Status ActOwnFields(const manifest::Program& program, train::Recipe* recipe) {
  for (const auto& [name, act] : All().fields) {
    if (program.own.Find(name) == nullptr) continue;
    const Status acted = act(program.own, recipe);
    if (!acted.ok()) return acted.At(program.Where(name));
  }
  return OkStatus();
}

}  // namespace meshtrain::recipe
