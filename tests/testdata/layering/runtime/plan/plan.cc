#include "runtime/plan/plan.h"
#include <fmt/format.h>
#include "tests/support/seed.h"
