#include "operator/reconcile/owner.h"

#include <nlohmann/json.hpp>

namespace meshtrain::reconcile {

std::string OwnerReference(const api::TrainingJob& job) {
  const nlohmann::json reference = {{"apiVersion", cluster::kApiVersion},
                                    {"kind", cluster::kKind},
                                    {"name", job.metadata.name},
                                    {"uid", job.metadata.uid},
                                    {"controller", true},
                                    {"blockOwnerDeletion", true}};
  return reference.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace meshtrain::reconcile
