// Makes a failing case small: fewer ways, outputs, states, ops, layouts and axes, for as long as
// what is left fails in the same way (an error stays that error, a wrong element a wrong element).
#pragma once

#include <functional>

#include "tests/contract/random_programs/case.h"

namespace meshtrain::random_programs {

// True while the case still shows what is looked for.
using Fails = std::function<bool(const Case&)>;

// Ends after `most_tries` calls of `fails`, or when nothing can be left out. `c` itself fails.
Case Reduce(Case c, const Fails& fails, int most_tries = 600);

}  // namespace meshtrain::random_programs
