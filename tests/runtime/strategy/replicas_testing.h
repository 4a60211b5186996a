// Replicas on devices of this process, and the numbers that they give.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/strategy/replicas.h"
#include "runtime/strategy/strategy.h"

namespace meshtrain::strategy {

inline std::unique_ptr<ReplicaStrategy> Mirrored(int64_t count, MirroredOptions options = {}) {
  options.count = count;
  return Strategy::Mirrored(std::move(options)).value();
}

inline std::vector<double> Numbers(const PerReplica& value) {
  std::vector<double> numbers;
  for (const mesh::Tensor& v : value.values) numbers.push_back(v.Item());
  return numbers;
}
using Doubles = std::vector<double>;

}  // namespace meshtrain::strategy
