#include "worker/runner.h"

#include <utility>
#include <vector>

namespace meshtrain::worker {

Result<std::unique_ptr<distribute::MeshRunner>> MakeRunner(
    execute::Session& session, const spec::Declared& declared,
    distribute::MeshRunner::Options options) {
  const auto trace =
      [declared](const std::vector<mesh::TensorType>& types) -> Result<distribute::TracedSteps> {
    MT_ASSIGN_OR_RETURN(spec::Traced traced, declared.Trace(types));
    sharding::Given layouts;
    layouts.inputs = std::move(traced.layouts.inputs);
    layouts.states = std::move(traced.layouts.states);
    return distribute::TracedSteps{std::move(traced.programs), std::move(layouts)};
  };
  return distribute::MeshRunner::Create(session, declared.mesh(), trace, std::move(options));
}

}  // namespace meshtrain::worker
