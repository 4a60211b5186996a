// What the verbs that read a manifest share.
#pragma once

#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "runtime/spec/spec.h"

namespace meshtrain::cli {

// Reads and checks the file. Errors, of kManifest: kNotFound when there is none, kInvalidArgument
// with every mistake.
Result<spec::Manifest> ReadManifest(const std::string& file);

// What the heads of the data files say of the batches.
struct DataBatches {
  spec::Batches train;
  std::optional<spec::Batches> test;
};
// Errors: those of opening the files, of kInput.
Result<DataBatches> ReadBatches(const spec::ProgramSpec& program);
// Declared::CheckBatches, with the place in the manifest; of kManifest.
Status CheckBatches(const spec::Manifest& manifest, const DataBatches& batches);

// "meshtrain VERB: MESSAGE" on stderr, each line of the message by itself.
void PrintError(const char* verb, const Status& error);
// The exit code of a verb that ended with `status`, after PrintError where it is an error.
int End(const char* verb, const Status& status);

}  // namespace meshtrain::cli
