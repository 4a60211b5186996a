// Files in one gzipped tar archive (POSIX.1-1988 ustar), written whole.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace meshtrain::cli {

// The archive's bytes. Errors: kInvalidArgument for a name of more than 100 bytes; kInternal where
// zlib fails.
Result<std::string> TarGz(const std::vector<std::pair<std::string, std::string>>& files,
                          int64_t seconds_since_1970);

}  // namespace meshtrain::cli
