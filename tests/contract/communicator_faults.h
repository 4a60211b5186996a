// What tests of faults between processes share: a mesh of them, and a sum that all of them take
// part in.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/collective/communicator.h"
#include "tests/contract/communicator_processes.h"

namespace meshtrain::collective {

using mesh::DType;
using mesh::Mesh;
using mesh::Reduction;

// One device per process.
inline Mesh Line(int processes) {
  std::vector<mesh::Device> devices;
  for (int p = 0; p < processes; ++p) devices.push_back({mesh::DeviceKind::kCpu, p, 0});
  return *Mesh::Create({{"batch", processes}}, devices);
}

// Sums `count` ones over all processes; a wrong sum is kInternal.
inline Status SumOnes(Communicator& c, int process, int64_t count = 1000,
                      const std::string& what = "all_reduce of %31") {
  std::vector<float> data(count, 1.0f);
  const Participant us{process, reinterpret_cast<std::byte*>(data.data()),
                       reinterpret_cast<std::byte*>(data.data())};
  MT_RETURN_IF_ERROR(c.AllReduce({{0}, DType::kF32, what}, Reduction::kSum, count, {&us, 1}));
  for (const float x : data) {
    if (x != static_cast<float>(c.mesh().size())) {
      return Internal("a wrong sum: " + std::to_string(x));
    }
  }
  return OkStatus();
}

inline bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace meshtrain::collective
