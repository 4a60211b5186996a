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

Result<mesh::Layout> Parameter::LayoutOn(const mesh::Mesh& mesh, const LayoutSpecs& specs) const {
  MT_ASSIGN_OR_RETURN(mesh::Layout layout, mesh::Layout::FromSpecs(specs, mesh));
  const Blocks& blocks = options_.blocks;
  for (size_t d = 0; d < blocks.counts.size() && d < layout.dims().size(); ++d) {
    const int64_t count = blocks.counts[d];
    if (count == 0 || count % layout.NumShards(static_cast<int>(d)) == 0) continue;
    return InvalidArgument("expected axes that divide its " + std::to_string(count) + " " +
                           blocks.what + ", got: " + layout.ToString() + " of mesh " +
                           mesh.ToString());
  }
  return layout;
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
