// Which exit code (contract.h) an error means, by what the process was doing. Worker and command
// line share it. docs/reference/run.md lists the ways that lead to each.
//
// Kept true: what would be the same at the next attempt (a newer version's checkpoint, memory that
// the machine has not) is never a code that is retried; a full disk, which is kResourceExhausted as
// an output, is.
#pragma once

#include "runtime/base/status.h"

namespace meshtrain::cluster {

// While reading the manifest and making its program: 66 when it is not there, 78 when it is wrong.
int ManifestExitCode(const Status& error);
// While reading data or weights: 66 when they are not there, 65 when they are bad or of a kind that
// is not read, 78 when there is no memory for them.
int DataExitCode(const Status& error);
// While writing or resuming from the job's own files, and while computing: 73 when they cannot be
// made, 65 when they are damaged, 78 when they are a newer version's or there is no memory.
int OutputExitCode(const Status& error);
// While asking the other processes of the job to work with it: a token that they refuse is a wrong
// configuration, 78; where all have to start again (kAborted), 138. (One that is lost, or does not
// come, is 138: the caller's to see.)
int JoinExitCode(const Status& error);

}  // namespace meshtrain::cluster
