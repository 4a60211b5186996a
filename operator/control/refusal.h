// What the API server's answer to a write says: whether it has decided, and what it refused for
// good, in the words that a job's status shows. Pure.
#pragma once

#include <optional>
#include <string>

#include "operator/reconcile/reconcile.h"
#include "runtime/base/status.h"

namespace meshtrain::control {

// Whether the API server has decided on a write. An error of any other kind may mean that it never
// arrived. That it could not make an object counts, since whatever stands in the way may stay.
bool WasAnswered(const reconcile::Write& write, const Status& status);

// Of the object that the write is about; empty if it has none of its own.
std::string NameOf(const reconcile::Write& write);

// At most 1024 bytes, without line breaks and tabs.
std::string OneLine(std::string text);

// Of what was to be made or changed; nothing where the API server did not refuse it for good. That
// it could not, as where an admission webhook does not answer, is the reason "InternalError".
std::optional<reconcile::RefusedWrite> RefusalOf(const reconcile::Write& write,
                                                 const Status& status);

}  // namespace meshtrain::control
