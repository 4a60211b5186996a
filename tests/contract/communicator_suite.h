// What every communicator keeps, whatever carries its bytes. A new one joins by
//   INSTANTIATE_TEST_SUITE_P(Shm, CommunicatorSuite, testing::Values(CommunicatorFactory{...}), FactoryName);
// Each process of a case is a thread here, which owns one communicator and issues its calls.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/collective/communicator.h"

namespace meshtrain::collective {

struct CommunicatorFactory {
  std::string name;
  int max_processes = 1;
  // One communicator per process of the mesh's devices, in the order of processes.
  std::function<std::vector<std::unique_ptr<Communicator>>(const mesh::Mesh& mesh, int processes)> make;
  friend std::ostream& operator<<(std::ostream& out, const CommunicatorFactory& f) { return out << f.name; }
};

inline std::string FactoryName(const testing::TestParamInfo<CommunicatorFactory>& info) { return info.param.name; }

class CommunicatorSuite : public testing::TestWithParam<CommunicatorFactory> {};

}  // namespace meshtrain::collective
