#include "runtime/telemetry/host_names.h"

#include <arpa/inet.h>

#include <algorithm>
#include <optional>

#include "runtime/base/text.h"

namespace meshtrain::telemetry {
namespace {

bool IsAddress(int family, const std::string& text) {
  unsigned char parsed[16];
  return ::inet_pton(family, text.c_str(), parsed) == 1;
}

bool IsPort(std::string_view text) {
  return text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The host without its port; nothing where it is no host and port.
std::optional<std::string> WithoutPort(std::string_view text) {
  const size_t end = text.starts_with('[') ? text.find(']') : text.find(':');
  if (text.starts_with('[') && end == std::string_view::npos) return std::nullopt;
  const size_t host_end = std::min(text.starts_with('[') ? end + 1 : end, text.size());
  const std::string_view rest = text.substr(host_end);
  if (!rest.empty() && (rest[0] != ':' || !IsPort(rest.substr(1)))) return std::nullopt;
  return std::string(text.substr(0, host_end));
}

}  // namespace

bool IsOwnHost(std::string_view host, const std::set<std::string, std::less<>>& names) {
  if (host.empty()) return true;
  std::optional<std::string> name = WithoutPort(ToLower(host));
  if (!name) return false;
  if (name->starts_with('[')) return IsAddress(AF_INET6, name->substr(1, name->size() - 2));
  if (name->ends_with('.')) name->pop_back();
  return IsAddress(AF_INET, *name) || *name == "localhost" || name->ends_with(".localhost") ||
         names.contains(*name);
}

}  // namespace meshtrain::telemetry
