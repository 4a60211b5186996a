// How the instructions of a module spell lists. Private to module*.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device/pjrt/module.h"

namespace meshtrain::device::pjrt {

std::string List(const std::vector<int64_t>& numbers);  // "[1, 2]"
std::string TypesOf(const std::vector<Node>& nodes);    // "tensor<4xf32>, tensor<i64>"
std::string NamesOf(const std::vector<Node>& nodes);    // "%1, %2"

}  // namespace meshtrain::device::pjrt
