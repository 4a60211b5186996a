#pragma once
#include "runtime/train/fit.h"
