#pragma once
#include "runtime/mesh/mesh.h"
#include "runtime/base/file.h"
// #include "runtime/execute/run.h" is prose
