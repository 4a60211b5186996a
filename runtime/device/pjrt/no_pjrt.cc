// Stands in for backend.cc where the C API's header was not there (CMakeLists.txt).
#include "runtime/base/check.h"
#include "runtime/device/pjrt/pjrt_backend.h"

namespace meshtrain::device {

bool HasPjrt() { return false; }

Result<std::unique_ptr<Backend>> MakePjrtBackend(const PjrtOptions&) {
  return Unimplemented(
             "pjrt: this build cannot load plugins: it was configured without pjrt_c_api.h "
             "(MT_PJRT_INCLUDE)")
      .From(Origin::kManifest);
}

PjrtCounts CountsOfPjrtBackend(const Backend&) {
  MT_CHECK(false);
  return {};
}

}  // namespace meshtrain::device
