#include "operator/kube/endpoint.h"

#include "runtime/base/text.h"

namespace meshtrain::kube {

Result<Endpoint> ParseEndpoint(std::string_view url, std::string_view where) {
  const auto refuse = [&] {
    return InvalidArgument(std::string(where) +
                           ": expected http[s]://host[:port][/path], got: " + Excerpt(url));
  };
  Endpoint out;
  std::string_view rest = url;
  if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
    out.tls = false;
    out.port = 80;
  } else {
    return refuse();
  }
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    out.path = std::string(rest.substr(slash));
    while (out.path.ends_with('/')) out.path.pop_back();
    rest = rest.substr(0, slash);
  }
  std::string_view port;
  if (rest.starts_with('[')) {
    const size_t close = rest.find(']');
    if (close == std::string_view::npos) return refuse();
    out.host = std::string(rest.substr(1, close - 1));
    rest.remove_prefix(close + 1);
    if (!rest.empty() && rest.front() != ':') return refuse();
    port = rest.empty() ? rest : rest.substr(1);
  } else {
    const size_t colon = rest.find(':');
    out.host = std::string(rest.substr(0, colon));
    if (colon != std::string_view::npos) port = rest.substr(colon + 1);
  }
  if (!port.empty()) {
    const auto number = ParseInt(port);
    if (!number || *number < 1 || *number > 65535) return refuse();
    out.port = static_cast<int>(*number);
  }
  if (out.host.empty()) return refuse();
  return out;
}

}  // namespace meshtrain::kube
