// Where a server or a proxy listens: the parts of its URL.
// Internal to operator/kube.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace meshtrain::kube {

struct Endpoint {
  bool tls = true;
  std::string host;  // without brackets
  int port = 443;
  std::string path;  // before every request's path; no slash at its end
};

// Reads http[s]://host[:port][/path]; an IPv6 host stands in brackets. `where` names the URL in
// errors. Errors: kInvalidArgument for anything else.
Result<Endpoint> ParseEndpoint(std::string_view url, std::string_view where);

}  // namespace meshtrain::kube
