#include <algorithm>
#include <numeric>

#include "runtime/base/text.h"
#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {

Value Permute::Call(const Value& x) {
  std::vector<int64_t> places(static_cast<size_t>(std::max(0, x.rank() - 1)));
  std::iota(places.begin(), places.end(), 1);
  if (x.rank() == 0 ||
      !std::is_permutation(dims_.begin(), dims_.end(), places.begin(), places.end())) {
    std::vector<std::string> got;
    for (const int64_t dim : dims_) got.push_back(std::to_string(dim));
    Fail(InvalidArgument("dims must name each dimension of an example once, from 1 to " +
                         std::to_string(places.size()) + " of " + x.type().ToString() +
                         ", got: " + Join(got, ", ")));
    return x;
  }
  std::vector<int64_t> order = dims_;
  order.insert(order.begin(), 0);
  return program::Transpose(x, order);
}

namespace by_name {

LayerPtr Permute(const std::string& name, const Options& options) {
  return Make<nn::Permute>(options.Ints("dims").value_or(std::vector<int64_t>{}), name);
}

}  // namespace by_name
}  // namespace meshtrain::nn
