// The variables of a strategy: where each one's value lies now, and how it got its first.
//
// Kept true: a variable begins once, with equal values in all replicas and processes. Its value
// lies either with the replicas (custom loops) or on the strategy's mesh (Model), and moves when
// the other way wants it. One thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/nn/parameter.h"
#include "runtime/strategy/replicas.h"

namespace meshtrain::strategy {

// kInvalidArgument naming the variable, where its value would be of another type.
Status CheckTypeOf(const std::string& name, const mesh::TensorType& expected,
                   const mesh::TensorType& got);
// kFailedPrecondition naming the variable.
Status OfAnotherScope(const program::Variable& variable);

class Variables {
 public:
  // `session`: of the mesh; made when first asked for.
  Variables(Replicas& replicas, mesh::Mesh mesh, std::function<Result<execute::Session*>()> session,
            int64_t seed)
      : replicas_(replicas), mesh_(std::move(mesh)), session_(std::move(session)), seed_(seed) {}

  // A parameter was made under the strategy's scope.
  void Add(const nn::Parameter& parameter);

  // Makes the values lie there. Errors: kFailedPrecondition for a variable of another scope.
  Status ToReplicas(std::span<const program::Variable> variables);
  Status ToMesh(std::span<const program::Variable> variables);

  // The value (of the first replica). Errors: as above.
  Result<mesh::Tensor> Read(const program::Variable& variable);
  // Of each copy of this process: one where it lies on the mesh.
  Result<std::vector<mesh::Tensor>> Copies(const program::Variable& variable);
  // Every copy. Errors: also kInvalidArgument (type).
  Status Assign(const program::Variable& variable, const mesh::Tensor& value);
  // Every copy gets the first one's value, for those that lie with the replicas.
  Status Equalize();
  Status Equalize(std::span<const program::Variable> variables);

  // The variable is saved and restored no more, until it is used again.
  void Retire(const program::Variable& variable);
  // Variables that have a value and are not retired, in the order in which they were made.
  std::vector<program::Variable> Valued() const;
  // Values by name, for variables there are and those that are made later. Errors: kInvalidArgument
  // (type).
  Status Give(std::map<std::string, mesh::Tensor> values);

 private:
  enum class Home : uint8_t { kNone, kReplicas, kMesh };
  struct Held {
    nn::Parameter parameter;
    Home home = Home::kNone;
    std::optional<mesh::Tensor> first = {};  // given before it began
    bool retired = false;
  };
  Result<Held*> Find(const program::Variable& variable);
  Status Begin(std::span<Held* const> held, Home home);
  Status Move(std::span<const program::Variable> variables, Home home);
  Result<mesh::Tensor> ReadAt(const Held& held);
  Status WriteAt(const Held& held, Home home, const mesh::Tensor& value);

  Replicas& replicas_;
  mesh::Mesh mesh_;
  std::function<Result<execute::Session*>()> session_;
  int64_t seed_;
  std::vector<std::unique_ptr<Held>> held_;  // as made
  std::map<const void*, Held*> by_key_;
  std::map<std::string, mesh::Tensor> given_;  // for variables that are not there yet
};

}  // namespace meshtrain::strategy
