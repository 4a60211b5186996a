// The variables of a strategy: where each one's value lies now, and how it got its first.
//
// Kept true: a variable begins once, with equal values in all replicas and processes. Its value
// lies either on the strategy's mesh (Model) or, where there are replicas, with them (custom
// loops), and moves when the other way wants it. One thread.
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
  using Layouts = std::map<std::string, mesh::Layout>;  // by name
  struct Options {
    mesh::Mesh mesh;
    std::function<Result<execute::Session*>()> session;  // of the mesh; made when first asked for
    // Made when first asked for; null: there are none, and variables lie on the mesh.
    std::function<Result<Replicas*>()> replicas;
    // That a variable takes on the mesh where nobody says it; null: a copy on every device.
    std::function<Result<mesh::Layout>(const nn::Parameter&)> layout;
    std::optional<int64_t> seed;  // of first values; none: nn::RandomSeed() then
  };
  explicit Variables(Options options) : o_(std::move(options)) {}

  // A parameter was made under the strategy's scope.
  void Add(const nn::Parameter& parameter);

  // Those of them that were.
  std::vector<program::Variable> KnownOf(std::span<const program::Variable> variables) const;

  // Makes the values lie there. Errors: kFailedPrecondition for a variable of another scope.
  Status ToReplicas(std::span<const program::Variable> variables);
  Status ToMesh(std::span<const program::Variable> variables, const Layouts& layouts = {});
  // Makes them lie on the mesh with zeros, for who gives them their first values.
  Status DeclareOnMesh(std::span<const nn::Parameter> parameters, const Layouts& layouts);
  // The session that all of these lie in: the mesh's, or the first replica's where all of them lie
  // with the replicas. Moves those that lie elsewhere.
  Result<execute::Session*> InOneSession(std::span<const program::Variable> variables);

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
  // Variables that have a value, are not retired and are held by somebody else (a layer, an
  // optimizer), in the order in which they were made.
  std::vector<program::Variable> Valued() const;
  // Values by name, for such variables. A value that none of them takes goes to the first variable
  // of its name that is made later. Errors: kInvalidArgument (type).
  Status Give(std::map<std::string, mesh::Tensor> values);

 private:
  enum class Home : uint8_t { kNone, kReplicas, kMesh };
  struct Held {
    nn::Parameter parameter;            // Unheld
    std::weak_ptr<const void> holders;  // of those who have it besides
    Home home = Home::kNone;
    std::optional<mesh::Tensor> first = {};  // given before it began
    bool retired = false;
    bool counts() const { return !retired && !holders.expired(); }  // is saved and restored
  };
  Result<Held*> Find(const program::Variable& variable);
  Status Declare(const nn::Parameter& parameter, Home home, const Layouts& layouts);
  Status Begin(std::span<Held* const> held, Home home, const Layouts& layouts);
  Status Move(std::span<const program::Variable> variables, Home home, const Layouts& layouts);
  Home first_home() const { return o_.replicas ? Home::kReplicas : Home::kMesh; }
  Result<mesh::Tensor> ReadAt(const Held& held);
  Status WriteAt(const Held& held, Home home, const mesh::Tensor& value);

  Options o_;
  Replicas* replicas_ = nullptr;             // once something lies with them
  std::vector<std::unique_ptr<Held>> held_;  // as made
  std::map<const void*, Held*> by_key_;
  std::map<std::string, mesh::Tensor> given_;  // that no variable has taken
};

}  // namespace meshtrain::strategy
