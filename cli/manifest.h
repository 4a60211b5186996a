// What the verbs that read a manifest share.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "runtime/manifest/node.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::cli {

struct Console;

inline constexpr int64_t kLargestManifest = manifest::DocumentLimits().bytes;  // of its text

// The text of the file; of standard input where it is "-". Errors, of kManifest: kNotFound;
// kInvalidArgument for one that is too large.
Result<std::string> ReadManifestText(const std::string& file, const Console& console);

// Reads and checks the file. Errors, of kManifest: kNotFound when there is none, kInvalidArgument
// with every mistake.
Result<manifest::Manifest> ReadManifest(const std::string& file,
                                        const manifest::ReadOptions& options = {});

// What the heads of the data files say of the batches.
struct DataBatches {
  std::optional<recipe::Batches> train;
  std::optional<recipe::Batches> test;
};
// Errors: those of opening the files, and data::CheckSameClasses', of kInput.
Result<DataBatches> ReadBatches(const manifest::Program& program);
// The batches of the data that is here. Errors: those of files that are here and are no data of
// their kind; none where `may_be_elsewhere`.
Result<DataBatches> ReadBatchesHere(const manifest::Program& program, bool may_be_elsewhere);
// Declared::CheckBatches, with the place in the manifest; of kManifest.
Status CheckBatches(const manifest::Manifest& manifest, const DataBatches& batches);

// "meshtrain VERB: MESSAGE" to `err`.
void PrintError(const char* verb, const Status& error, std::ostream& err);
// The exit code of a verb that ended with `status`, after PrintError where it is an error.
int End(const char* verb, const Status& status, std::ostream& err);

}  // namespace meshtrain::cli
