#pragma once
#include "runtime/device/cpu/kernel.h"
