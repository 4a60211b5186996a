// For which host names a process's web server answers. A page of somebody else's that a browser
// shows can have its own name resolved to our address, and would then read our pages as if they
// were its own (DNS rebinding); the name it asked for stands in the request's Host. Pure.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace meshtrain::telemetry {

// Whether a request with this Host ("mnist-chief-0:2280", "[::1]:80") is for us: a numeric address
// or localhost, which nobody can give to another, or one of `names` (lower case, without ports).
// Without a Host ("", as HTTP/1.0 allows and no browser does) it is.
bool IsOwnHost(std::string_view host, const std::set<std::string, std::less<>>& names);

}  // namespace meshtrain::telemetry
