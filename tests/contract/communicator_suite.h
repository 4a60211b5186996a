// What every communicator keeps, whatever carries its bytes. A new one joins by
//   INSTANTIATE_TEST_SUITE_P(Shm, CommunicatorSuite, ::testing::Values(CommunicatorFactory{...}),
//                            FactoryName);
// Each process checks what its own devices receive, so that a process may be a child.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "runtime/collective/communicator.h"
#include "tests/contract/communicator_processes.h"

namespace meshtrain::collective {

struct CommunicatorFactory {
  std::string name;
  int max_processes = 1;
  // Runs `body` in so many processes; what each returned, "" where all is well.
  std::function<std::vector<std::string>(int processes,
                                         const std::function<std::string(Member&)>& body)>
      run;
  friend std::ostream& operator<<(std::ostream& out, const CommunicatorFactory& f) {
    return out << f.name;
  }
};

inline std::string FactoryName(const ::testing::TestParamInfo<CommunicatorFactory>& info) {
  return info.param.name;
}

class CommunicatorSuite : public ::testing::TestWithParam<CommunicatorFactory> {};

}  // namespace meshtrain::collective
