// The one owner reference that this operator gives. Internal to operator/reconcile.
#pragma once

#include <string>

#include "operator/api/training_job.h"

namespace meshtrain::reconcile {

// As compact JSON.
std::string OwnerReference(const api::TrainingJob& job);

}  // namespace meshtrain::reconcile
