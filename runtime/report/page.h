// The page's own text: what stands in page/, made into strings by the build.
#pragma once

#include <string_view>

namespace meshtrain::report {

extern const std::string_view kPageStyle;   // page/page.css
extern const std::string_view kPageScript;  // page/page.js

}  // namespace meshtrain::report
