// What every backend keeps. A new one joins by
//   INSTANTIATE_TEST_SUITE_P(Cuda, BackendSuite, ::testing::Values(BackendFactory{...}),
//                            BackendName);
// It has 15 devices or more; where a plugin has fewer (one GPU), what needs more does not run.
// Numbers are compared with the interpreter (tests/support), which shares no code with any backend.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "runtime/device/backend.h"
#include "tests/contract/run_plan.h"

namespace meshtrain::device {

struct BackendFactory {
  std::string name;
  bool computes = true;  // false: shapes and bytes only
  std::function<std::unique_ptr<Backend>()> make;
  std::string missing;  // why it cannot run here; "": it can
  bool quick = true;    // false: compiling is slow, so fewer of the programs that are drawn
  friend std::ostream& operator<<(std::ostream& out, const BackendFactory& f) {
    return out << f.name;
  }
};

// Whether the backend has enough devices for the mesh.
bool Fits(const Backend& backend, const std::string& mesh_text);

inline std::string BackendName(const ::testing::TestParamInfo<BackendFactory>& info) {
  return info.param.name;
}

class BackendSuite : public ::testing::TestWithParam<BackendFactory> {
 protected:
  void SetUp() override {
    if (!GetParam().missing.empty()) GTEST_SKIP() << GetParam().missing;
  }
};

}  // namespace meshtrain::device
