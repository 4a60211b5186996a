#pragma once
#include "runtime/base/status.h"
#include "runtime/plan/plan.h"
