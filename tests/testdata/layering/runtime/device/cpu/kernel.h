#pragma once
#include "runtime/plan/plan.h"
#include <thread>
