// Stands in for what compiles ahead of time where the C API's header was not there
// (CMakeLists.txt).
#include "runtime/device/pjrt/ahead.h"

namespace meshtrain::device {

Result<Ahead> CompileAhead(const AheadOptions& options, std::span<const AheadProgram>) {
  return Unimplemented("target tpu:" + std::string(options.target.name) +
                       ": this build cannot load plugins: it was configured without "
                       "pjrt_c_api.h (MT_PJRT_INCLUDE)")
      .From(Origin::kManifest);
}

}  // namespace meshtrain::device
