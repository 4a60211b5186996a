// The value of a Result that has to have one.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "runtime/base/status.h"

namespace meshtrain::parameter {

template <typename T>
T Must(Result<T> result) {
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return std::move(result).value();
}

}  // namespace meshtrain::parameter
