// The one table of what a TrainingJob must satisfy beyond types and ranges. The CRD carries the CEL
// side, `validate` and the operator run the C++ side; both say the same words at the same path.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/training_job.h"

namespace meshtrain::api {

struct Rule {
  // Where the CRD hangs the rule, and what `self` is in it: "", "spec", "spec.runPolicy",
  // "spec.replicaSpecs".
  std::string_view at;
  // CEL; empty where CEL cannot say it (then only C++ checks). A rule that names oldSelf compares
  // with the old object.
  std::string_view cel;
  // After "must"-style path: "may have at most one replica".
  std::string_view message;
  // The field that a person should look at, relative to `at`; empty: `at` itself.
  std::string_view field;
  // True: satisfied. For rules on changes `old` is the object before; it is null on creation.
  bool (*holds)(const TrainingJob& job, const TrainingJob* old);
  // What to print after "got: "; null: nothing.
  std::string (*got)(const TrainingJob& job);
  bool on_change = false;  // evaluated only with an old object
};
std::span<const Rule> Rules();

// Everything wrong with the job: its `problems`, then the rules, in the table's order. Empty:
// valid.
std::vector<FieldError> Validate(const TrainingJob& job);
// What may not change: "spec.strategy: is immutable, got: Mesh (was Default)".
std::vector<FieldError> ValidateUpdate(const TrainingJob& before, const TrainingJob& after);

// What is allowed but probably not meant: a role key's odd spelling under `scale`, a template's own
// restartPolicy, the user's own TF_CONFIG, a cluster so large that it goes into a file.
std::vector<FieldError> Warnings(const TrainingJob& job);

}  // namespace meshtrain::api
