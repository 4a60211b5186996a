#include "worker/runner.h"

#include <utility>
#include <vector>

namespace meshtrain::worker {

Result<std::unique_ptr<trainer::MeshRunner>> MakeRunner(execute::Session& session,
                                                        const recipe::Declared& declared,
                                                        trainer::MeshRunner::Options options) {
  const auto trace =
      [declared](const std::vector<mesh::TensorType>& types) -> Result<trainer::TracedSteps> {
    MT_ASSIGN_OR_RETURN(recipe::Traced traced, declared.Trace(types));
    sharding::Given layouts;
    layouts.inputs = std::move(traced.layouts.inputs);
    layouts.states = std::move(traced.layouts.states);
    return trainer::TracedSteps{std::move(traced.programs), std::move(layouts)};
  };
  return trainer::MeshRunner::Create(session, declared.mesh(), trace, std::move(options));
}

}  // namespace meshtrain::worker
