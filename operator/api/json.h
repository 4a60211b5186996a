// TrainingJob <-> JSON text, and YAML text -> JSON text. Reading never fails on content: what
// cannot be read is named in TrainingJob::problems and left at its default, so that the operator
// can still say so in the job's status.
#pragma once

#include <string>
#include <string_view>

#include "operator/api/training_job.h"
#include "runtime/base/status.h"

namespace meshtrain::api {

// Reads one object: folds role keys, fills in defaults, checks types, ranges, spellings and unknown
// fields into `problems` ("spec.runPolicy.backofLimit: is not a field, did you mean
// `backoffLimit`?"). Times are RFC 3339. Errors: kInvalidArgument where the text is no JSON object,
// or is another kind or version.
// `before`: the same object at another version. Where its generation is the text's, which every
// change of a spec raises, the spec is taken from it and not read.
Result<TrainingJob> FromJson(std::string_view text, const TrainingJob* before = nullptr);

// The whole object, compact, keys sorted; what is empty or at "unset" is left out.
// FromJson(ToJson(x)) == x for jobs without problems.
std::string ToJson(const TrainingJob& job);
// The value of `status` alone, for PATCH and PUT of the status subresource.
std::string StatusToJson(const JobStatus& status);

// {"status":{…}} with null for what `before` had and `after` has not: a merge patch. Empty where
// nothing differs.
std::string StatusMergePatch(const JobStatus& before, const JobStatus& after);

// The first document of a YAML text as compact JSON. YAML 1.2 core scalars (so `yes` is a string),
// quotes make strings; aliases and anchors are followed within a budget of nodes. Errors:
// kInvalidArgument with line and column; kResourceExhausted past the budget (an alias bomb).
Result<std::string> YamlToJson(std::string_view text, int64_t max_nodes = 1'000'000);

// What rules read of a PodTemplateSpec (compact JSON); problems are appended with `path` in front.
PodTemplate ReadPodTemplate(std::string_view json, const std::string& path,
                            std::vector<FieldError>* problems);

}  // namespace meshtrain::api
