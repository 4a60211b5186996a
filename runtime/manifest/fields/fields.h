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
Field LayoutField();                  // Program
Field GenerateField();                // Program

// The names of a program's inputs.
inline constexpr std::string_view kLabelName = "y";

}  // namespace meshtrain::manifest
