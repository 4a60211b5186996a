// What is known of matrix products without reading them.
//
// A gradient of weights is a product of two matrices that are far smaller than it where the batch
// is small. If all their elements lie within L, none of the product's lies beyond 2 k L^2 (k:
// multiplications for one element; the 2 is more than their rounding can add), so that no element
// of the product has to be looked at to tell that none is beyond that. What two matrices do not
// tell, NaN among them, is counted in the product as ever.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/plan/plan.h"

namespace meshtrain::device::cpu {

// The largest number of the type that is not above `limit`.
double WithinType(mesh::DType dtype, double limit);

// Of one executable. Threads: a device's own marks are read and written by one thread at a time.
class Bounds {
 public:
  Bounds(const program::Program& local, int devices);

  // L for product `v`; 0: nobody counts in it, or its factors are no less to read.
  double FactorLimit(program::ValueId v) const;
  // In this run the factors of `v` lie within FactorLimit(v), or do not.
  void Mark(int device, program::ValueId v, bool within);
  // True: no element of `v` is beyond any limit that a count_beyond of the program asks about.
  bool Within(int device, program::ValueId v) const;

 private:
  struct Product {
    double factor_limit = 0;
    std::vector<uint8_t> within;  // per device
  };
  std::map<program::ValueId, Product> products_;
};

}  // namespace meshtrain::device::cpu
