// A scalar that an optimizer computes once for all weights.
#pragma once

#include <map>

#include "runtime/train/optimizer.h"

namespace meshtrain::train {

// A scalar that all weights share, as each weight's type: cast once per type and program.
class Shared {
 public:
  void Set(const Value& scalar) {
    scalar_ = scalar;
    casts_.clear();
  }
  Value As(const Parameter& weight) {
    const DType dtype = weight.type().dtype;
    if (scalar_.dtype() == dtype) return scalar_;
    const auto [cast, is_new] = casts_.try_emplace(dtype);
    if (is_new) cast->second = program::Cast(scalar_, dtype);
    return cast->second;
  }

 private:
  Value scalar_;
  std::map<DType, Value> casts_;
};

}  // namespace meshtrain::train
