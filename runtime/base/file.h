// Files without half-written ones. Errors: kNotFound, kPermissionDenied, kAlreadyExists (what lies
// there is no file), kResourceExhausted (disk full), kUnavailable (other), each naming the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace meshtrain {

// `max_bytes` guards against a wrong path: larger files are kResourceExhausted.
Result<std::string> ReadFile(const std::string& path, int64_t max_bytes = int64_t{1} << 30);

// Writes `path`.tmp.<pid>, syncs, renames over `path`, syncs the folder: readers see the old bytes
// or the new ones.
Status WriteFileAtomically(const std::string& path, std::string_view bytes);

// Makes the folder and its parents.
Status MakeDirectories(const std::string& path);

// The Status for an errno: "PATH: what: strerror".
Status ErrnoStatus(int error, std::string_view what, std::string_view path);

}  // namespace meshtrain
