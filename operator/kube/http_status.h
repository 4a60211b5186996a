// The Status for what an API server answered, from its HTTP code and the Status object in the body.
// Internal to operator/kube.
#pragma once

#include <cstddef>
#include <string_view>

#include "runtime/base/status.h"

namespace meshtrain::kube {

inline constexpr size_t kMaxErrorBody = 64 << 10;

// The Status for an HTTP answer that is not 2xx, with the codes of client.h; `body` is the server's
// Status object where it sent one.
Status StatusFromHttp(int http_status, std::string_view body, std::string_view what);

}  // namespace meshtrain::kube
