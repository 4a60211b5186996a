#include "runtime/recipe/plan_options.h"

#include <string>

#include "runtime/train/programs.h"

namespace meshtrain::recipe {

Result<plan::Options> PlanOptionsOf(const manifest::Program& program, const Declared& declared,
                                    const std::vector<mesh::TensorType>& types) {
  plan::Options options{.overlap = plan::SpansProcesses(declared.mesh()),
                        .finite_outputs = {std::string(train::kLossName)}};
  options.fuse = program.devices.kind != mesh::DeviceKind::kPjrt;  // its plugin's compiler fuses
  if (!program.packing().given()) return options;
  MT_ASSIGN_OR_RETURN(const Traced traced, declared.Trace(types));
  options.bucket_bytes = options.overlap_bucket_bytes = *BytesPerPack(program, traced);
  return options;
}

}  // namespace meshtrain::recipe
