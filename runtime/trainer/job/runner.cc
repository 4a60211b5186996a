#include "runtime/trainer/job/runner.h"

#include <utility>
#include <vector>

namespace meshtrain::trainer {

Result<std::unique_ptr<MeshRunner>> MakeRunner(execute::Session& session,
                                               const recipe::Declared& declared,
                                               MeshRunner::Options options) {
  const auto trace = [declared](const std::vector<mesh::TensorType>& types) -> Result<TracedSteps> {
    MT_ASSIGN_OR_RETURN(recipe::Traced traced, declared.Trace(types));
    sharding::Given layouts;
    layouts.inputs = std::move(traced.layouts.inputs);
    layouts.states = std::move(traced.layouts.states);
    return TracedSteps{std::move(traced.programs), std::move(layouts)};
  };
  return MeshRunner::Create(session, declared.mesh(), trace, std::move(options));
}

}  // namespace meshtrain::trainer
