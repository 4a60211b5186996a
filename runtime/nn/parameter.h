// A weight: a variable, how it begins, how it lies on the mesh and what its size costs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/mesh/layout.h"
#include "runtime/nn/initializer.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::nn {

// One per dimension: mesh axis ("batch", "batch+model") or "unsharded", as Layout::FromSpecs reads
// them. Without a mesh, so a model is the same on every mesh that has the axes.
using LayoutSpecs = std::vector<std::string>;

// l1 * sum |w| + l2 * sum w^2, added to the loss.
struct Regularizer {
  double l1 = 0;
  double l2 = 0;
  Value Record(const program::Variable& weight) const;
  friend bool operator==(const Regularizer&, const Regularizer&) = default;
};
inline Regularizer L2(double l2) { return {.l2 = l2}; }

// Parts of a weight that no layout may cut, so that what is computed of each stays on one device.
struct Blocks {
  std::string what;             // "heads"
  std::vector<int64_t> counts;  // per dimension, equal blocks of it; 0: it may be cut anywhere
};

struct ParameterOptions {
  std::optional<LayoutSpecs> layout;  // none: a LayoutMap may give one, else replicated
  std::optional<Regularizer> regularizer;
  bool trainable = true;
  Blocks blocks = {};
};

class Parameter;

// While it lives, `made` is told of each parameter that this thread makes (copies are the same
// one): how a strategy learns of its variables. Of nested scopes the innermost is told.
class ParameterScope {
 public:
  explicit ParameterScope(std::function<void(const Parameter&)> made);
  ~ParameterScope();
  ParameterScope(const ParameterScope&) = delete;
  ParameterScope& operator=(const ParameterScope&) = delete;

 private:
  friend class Parameter;
  static void Tell(const Parameter& parameter);
  std::function<void(const Parameter&)> made_;
  ParameterScope* previous_;
};

// Used wherever a Variable is: MatMul(x, kernel) + bias. Copies are the same variable.
class Parameter : public program::Variable {
 public:
  Parameter() = default;
  // `path` names the state: "hidden_1.kernel".
  Parameter(std::string path, TensorType type, Initializer initializer,
            ParameterOptions options = {})
      : Variable(std::move(path), std::move(type), options.trainable),
        initializer_(initializer),
        options_(std::move(options)),
        holders_(std::make_shared<const bool>(true)) {
    ParameterScope::Tell(*this);
  }
  // The tutorial's DVariable(call_with_layout(initializer, layout, dims)).
  Parameter(std::string path, program::Dims dims, Initializer initializer,
            const mesh::Layout& layout)
      : Parameter(std::move(path), TensorType{program::DType::kF32, std::move(dims)}, initializer,
                  {.layout = layout.specs()}) {}

  const Initializer& initializer() const { return initializer_; }
  const std::optional<LayoutSpecs>& layout() const { return options_.layout; }
  void set_layout(LayoutSpecs specs) { options_.layout = std::move(specs); }
  const std::optional<Regularizer>& regularizer() const { return options_.regularizer; }
  // `specs` on a mesh. Errors: Layout::FromSpecs', and kInvalidArgument where they cut a block:
  // "expected axes that divide its 4 heads, got: {*, model} of mesh model=8".
  Result<mesh::Layout> LayoutOn(const mesh::Mesh& mesh, const LayoutSpecs& specs) const;

  // Expires with the last copy of this parameter (the layer's, the optimizer's). Copies that are
  // plain Variables, and those that Unheld gives, do not count.
  std::weak_ptr<const void> holders() const { return holders_; }
  Parameter Unheld() const {
    Parameter copy = *this;
    copy.holders_.reset();
    return copy;
  }

  // Records its initial value in the current builder.
  Value RecordInitial(int64_t program_seed = RandomSeed()) const {
    return initializer_.Record(type(), SeedFor(program_seed, name()));
  }

 private:
  Initializer initializer_;
  ParameterOptions options_;
  std::shared_ptr<const void> holders_;
};

}  // namespace meshtrain::nn
