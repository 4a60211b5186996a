// Which exit code (contract.h) an error means, for every program of ours. docs/reference/run.md
// lists the ways that lead to each.
//
// Kept true: what would be the same at the next attempt (a newer version's checkpoint, memory that
// the machine has not) is never a code that is retried; a full disk, which is kResourceExhausted as
// an output, is.
#pragma once

#include <csignal>

#include "runtime/base/status.h"

namespace meshtrain::cluster {

// By whose error it is, and its code:
//   none, kOurs, kOutput  73 what cannot be made, 65 what is damaged, 78 what is a newer version's,
//                         of another model or more than there is memory, 70 a bug, 74 the rest
//   kManifest             66 not there, 78 wrong or too large, 70 a bug, 74 the rest
//   kInput                66 not there, 65 bad or of a kind that is not read, 78 more than there is
//                         memory, 70 a bug, 74 the rest
//   kPeers                138 lost, late, or all have to start again; 78 a token that they refuse;
//                         the rest as kOutput
//   kDevice               as kPeers
//   kApiServer            66 no such object, 74 no answer, one that is cut off or that it could
//                         not, 70 a bug, 128 + `signal` of a call that was broken off, 78 what is
//                         refused
//   kStop                 128 + `signal`, which asked for it
//   kNumbers              79
// OK is 0.
int ExitCodeOf(const Status& status, int signal = SIGTERM);

// How a role ends that was asked to stop and has done what there was to do before: nothing went
// wrong, and ExitCodeOf makes the signal's code of it.
inline Status Stopped() { return Cancelled("stopped as asked").From(Origin::kStop); }

}  // namespace meshtrain::cluster
