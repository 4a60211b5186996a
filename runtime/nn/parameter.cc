#include "runtime/nn/parameter.h"

#include <utility>

namespace meshtrain::nn {
namespace {

// This thread's innermost scope; set and restored by ParameterScope only.
thread_local ParameterScope* current_scope = nullptr;

}  // namespace

ParameterScope::ParameterScope(std::function<void(const Parameter&)> made)
    : made_(std::move(made)), previous_(std::exchange(current_scope, this)) {}
ParameterScope::~ParameterScope() { current_scope = previous_; }

void ParameterScope::Tell(const Parameter& parameter) {
  if (current_scope != nullptr) current_scope->made_(parameter);
}

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
