#pragma once
#include "runtime/spec/spec.h"
