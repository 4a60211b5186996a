// The one owner reference that this operator gives. Internal to operator/reconcile.
#pragma once

#include <nlohmann/json.hpp>

#include "operator/api/training_job.h"

namespace meshtrain::reconcile {

inline nlohmann::json OwnerReference(const api::TrainingJob& job) {
  return {{"apiVersion", cluster::kApiVersion},
          {"kind", cluster::kKind},
          {"name", job.metadata.name},
          {"uid", job.metadata.uid},
          {"controller", true},
          {"blockOwnerDeletion", true}};
}

}  // namespace meshtrain::reconcile
