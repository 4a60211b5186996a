// What a page shows of a plan: what Plan::Report() prints, as data. Pure.
#pragma once

#include "runtime/plan/plan.h"
#include "runtime/report/report.h"

namespace meshtrain::report {

PlanView ViewOf(const plan::Plan& plan);

}  // namespace meshtrain::report
