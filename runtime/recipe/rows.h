// What a program adds to what a manifest can say: layers, optimizers, losses, metrics, sources and
// fields of its own, each a row made in its own file.
//
//   // swish.cc: the layer, what a text may say of it, and what makes it
//   recipe::LayerRow SwishRow() {
//     return {{.name = "swish", .about = "x * sigmoid(beta * x).",
//              .options = {manifest::option::Number("beta", {.above = 0}, {.about = "..."})}},
//             [](const std::string& name, const Options& o) -> nn::LayerPtr {
//               return nn::Make<Swish>(o.Number("beta", 1), name);
//             }};
//   }
//
//   // main.cc, before anything is read
//   MT_RETURN_IF_ERROR(recipe::AddRows({SwishRow()}));
//
// From then on `model: [swish: {beta: 2}]` reads, is checked, is written and trains as the built-in
// layers do, in this process. The other processes of a job run the same program; the operator and
// `meshtrain` know the built-in rows alone.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/sources/sources.h"
#include "runtime/manifest/field.h"
#include "runtime/nn/by_name.h"
#include "runtime/train/by_name.h"
#include "runtime/train/programs.h"

namespace meshtrain::recipe {

using choice::Options;

struct LayerRow {
  manifest::Entry entry;
  nn::MakeLayer make = nullptr;
};
struct OptimizerRow {
  manifest::Entry entry;
  train::MakeOptimizer make = nullptr;
};
struct LossRow {
  manifest::Entry entry;
  train::MakeLoss make = nullptr;
};
struct MetricRow {
  manifest::Entry entry;
  train::MakeMetric make = nullptr;
};
// Refused under ParameterServer, whose workers open the data by themselves.
struct SourceRow {
  manifest::Entry entry;
  data::MakeSource make = nullptr;
};
// A field of `program`, made by manifest::option::Int and its like. `act` changes what is to be
// trained as the field says; it is called, before anything is traced, where the text gives the
// field. Errors: its own, told with the field's place.
struct FieldRow {
  manifest::Field field;
  Status (*act)(const Options& given, train::Recipe* recipe) = nullptr;
};
using Row = std::variant<LayerRow, OptimizerRow, LossRow, MetricRow, SourceRow, FieldRow>;

// All of them, or none; by one thread, before the first manifest is read. Errors:
// manifest::AddEntries' (own_rows.h); kInvalidArgument for a row that nothing makes.
Status AddRows(std::vector<Row> rows);

}  // namespace meshtrain::recipe
