// The smallest program that the operator accepts.
#pragma once

#include <string_view>

namespace meshtrain::testing_support {

inline constexpr std::string_view kProgram =
    R"({"data":{"batch":12,"train":{"idx":{"images":"a","labels":"b"}}},"loss":"mse",)"
    R"("model":["flatten",{"dense":{"units":1}}],"optimizer":"sgd"})";

}  // namespace meshtrain::testing_support
