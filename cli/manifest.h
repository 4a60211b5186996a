// What the verbs that read a manifest share.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/shape.h"
#include "runtime/spec/spec.h"

namespace meshtrain::cli {

// Reads and checks the file. Errors: kNotFound when there is none, kInvalidArgument with every
// mistake.
Result<spec::Manifest> ReadManifest(const std::string& file);

// The types of one full batch of the training data, from the headers of its files.
Result<std::vector<mesh::TensorType>> BatchTypes(const spec::ProgramSpec& program);

// "meshtrain VERB: MESSAGE" on stderr, each line of the message by itself.
void PrintError(const char* verb, const Status& error);

}  // namespace meshtrain::cli
