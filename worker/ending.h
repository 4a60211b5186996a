// How a process of a job ended: what went wrong, if anything, and what it leaves with
// (runtime/cluster/contract.h).
#pragma once

#include "runtime/base/status.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"

namespace meshtrain::worker {

struct Ending {
  Status status;
  int exit_code = cluster::kExitInternal;
};

using cluster::DataExitCode;
using cluster::JoinExitCode;
using cluster::ManifestExitCode;
using cluster::OutputExitCode;

// While a process takes its ports: one that is taken may be free for the next attempt. Else as
// `exit_of` says.
template <int (*exit_of)(const Status&)>
int PortExitCode(const Status& error) {
  return error.code() == StatusCode::kUnavailable ? cluster::kExitRetry : exit_of(error);
}

// In a function that returns an Ending: `lhs` from a Result, or an end with the exit code that
// `exit_of` gives its error.
#define MT_TRY(lhs, expr, exit_of)                        \
  auto MT_CONCAT_(try_, __LINE__) = (expr);               \
  if (!MT_CONCAT_(try_, __LINE__).ok()) {                 \
    const Status s = MT_CONCAT_(try_, __LINE__).status(); \
    return Ending{s, exit_of(s)};                         \
  }                                                       \
  lhs = std::move(*MT_CONCAT_(try_, __LINE__))

#define MT_TRY_STATUS(expr, exit_of)                     \
  if (const Status& s = (expr); !s.ok()) return Ending { \
      s, exit_of(s)                                      \
    }

}  // namespace meshtrain::worker
