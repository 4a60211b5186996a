// What a manifest can choose by name: names, types and bounds, the built-in ones (rows.h) and those
// that this program has added (own_rows.h). What the names stand for stays with nn, train and data;
// runtime/recipe joins the two.
#pragma once

#include "runtime/manifest/field.h"

namespace meshtrain::manifest {

const Catalogue& Layers();
const Catalogue& Initializers();
const Catalogue& Optimizers();
const Catalogue& Schedules();
const Catalogue& Losses();
const Catalogue& Metrics();
const Catalogue& Sources();
const Catalogue& MapOps();
const Catalogue& Partitioners();

}  // namespace meshtrain::manifest
