// The rows of the manifest's fields, in the order of the reference page.
#pragma once

#include <string_view>
#include <vector>

#include "runtime/manifest/field.h"

namespace meshtrain::manifest {

const std::vector<Field>& ProgramFields();     // read into Program
const std::vector<Field>& CheckpointFields();  // read into Checkpoint

// Names that a field of a program's own cannot have. Reads no row.
std::vector<std::string_view> BuiltInProgramFieldNames();

// Parts of ProgramFields().
std::vector<Field> DataFields();      // Data
std::vector<Field> TrainFields();     // Train
std::vector<Field> StrategyFields();  // Program: what strategies take
Field ModelField();                   // Program
Field MetricsField();                 // Program
Field OutputsField();                 // Program
Field MetricsOfOutput();              // Output

// A program of two outputs, which the samples of their fields change.
inline constexpr std::string_view kOutputsContext =
    "{loss: null, metrics: null, model: {layers: [flatten: {name: flat}, dense: {name: hidden, "
    "units: 8}, dense: {name: logits, units: 4}]}, outputs: [{layer: hidden, loss: "
    "sparse_categorical_crossentropy}, {layer: logits, loss: sparse_categorical_crossentropy}]}";
Field LayoutField();    // Program
Field GenerateField();  // Program

// Whether a figure may be called so: neither what has another meaning beside it, nor what `val_` or
// `test_` before it says.
bool IsFigureName(std::string_view name);

// The component that labels are where the text does not say.
inline constexpr std::string_view kLabelName = "y";

}  // namespace meshtrain::manifest
