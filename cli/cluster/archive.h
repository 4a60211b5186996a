// Files in one gzipped tar archive (POSIX.1-1988 ustar), written whole.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace meshtrain::cli {

// The archive's bytes. Errors: kInvalidArgument for a name of more than 100 bytes; kInternal where
// zlib fails.
Result<std::string> TarGz(const std::vector<std::pair<std::string, std::string>>& files,
                          int64_t seconds_since_1970);

// `text` without what looks like a secret: values of JSON members and of NAME=VALUE and NAME: VALUE
// whose name says so (token, password, secret, credential, api key), bearer tokens, and
// user:password@ in URLs. `--token=abc` becomes `--token=REDACTED`.
std::string Redacted(std::string_view text);

}  // namespace meshtrain::cli
