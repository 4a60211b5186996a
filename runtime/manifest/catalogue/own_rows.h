// What a program adds to what a manifest can say. recipe::AddRows (recipe/rows.h) calls this with
// the rows of things that can also be made; alone it serves who reads manifests and makes nothing.
//
// What a process has added holds for all of it, like the code that it was linked with: every
// manifest that it reads may use it. So rows are added before the first manifest is read, by one
// thread.
#pragma once

#include <vector>

#include "runtime/base/status.h"
#include "runtime/manifest/field.h"

namespace meshtrain::manifest {

struct OwnEntries {
  std::vector<Entry> layers;
  std::vector<Entry> optimizers;
  std::vector<Entry> losses;
  std::vector<Entry> metrics;
  std::vector<Entry> sources;  // `y` is among the components of each
  // Of `program`, read into Program::own: made by option::Int and its like.
  std::vector<Field> fields;
};

// All of them, or none. Text in the rows must live as long as the process. Errors:
// kInvalidArgument for a name that is taken, is no name ([a-z][a-z0-9_]*) or stands for something
// else beside it (a layer's option `name`), and for a row that says nothing about itself;
// kFailedPrecondition once a manifest has been read.
Status AddEntries(OwnEntries entries);

// Those added so far. From now on no more can be added.
const OwnEntries& AllOwnEntries();

}  // namespace meshtrain::manifest
