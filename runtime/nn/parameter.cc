#include "runtime/nn/parameter.h"

namespace meshtrain::nn {

Value Regularizer::Record(const program::Variable& weight) const {
  Value loss;
  if (l1 != 0) loss = program::ReduceSum(program::Abs(weight)) * l1;
  if (l2 != 0) {
    const Value squares = program::ReduceSum(program::Square(weight)) * l2;
    loss = loss.valid() ? loss + squares : squares;
  }
  return loss;
}

}  // namespace meshtrain::nn
