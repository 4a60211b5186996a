#pragma once
#include "runtime/execute/run.h"
#include <nlohmann/json.hpp>
