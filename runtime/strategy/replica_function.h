// A function that each replica runs on values of its own.
//
//   ReplicaFunction step("step", [&](Value x, Value y) -> Value { ...; return loss; });
//   // losses[0]: one value per replica
//   MT_ASSIGN_OR_RETURN(const auto losses, strategy->Run(step, batch));
//
// The body is called once for each set of local input types, and for each strategy, to record what
// it does. Keep the object out of the loop: what was traced is forgotten with the last copy of it.
// What the body captures by reference must live as long.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/execute/function.h"

namespace meshtrain::strategy {

using execute::Outputs;
using program::Value;

class ReplicaFunction {
 public:
  using Body = std::function<Outputs(std::span<const Value>)>;
  struct Shape {
    std::string name;
    size_t arity = 0;
    Body body;
  };

  // `body` takes one Value per component of the batch and gives a Value (one output), Outputs
  // (named ones) or nothing.
  template <typename F>
  ReplicaFunction(std::string name, F body)
      : ReplicaFunction(std::move(name), std::move(body), &F::operator()) {}

  const Shape& shape() const { return *shape_; }
  const std::shared_ptr<const Shape>& identity() const { return shape_; }

 private:
  template <typename F, typename R, typename... Args>
  ReplicaFunction(std::string name, F body, R (F::*)(Args...) const)
      : shape_(std::make_shared<const Shape>(
            Shape{std::move(name), sizeof...(Args),
                  Adapt<R>(std::move(body), std::index_sequence_for<Args...>())})) {}

  template <typename R, typename F, size_t... I>
  static Body Adapt(F body, std::index_sequence<I...>) {
    return [body = std::move(body)]([[maybe_unused]] std::span<const Value> v) -> Outputs {
      if constexpr (std::is_void_v<R>) {
        body(v[I]...);
        return {};
      } else if constexpr (std::is_same_v<R, Outputs>) {
        return body(v[I]...);
      } else {
        return {{"value", body(v[I]...)}};
      }
    };
  }

  std::shared_ptr<const Shape> shape_;
};

}  // namespace meshtrain::strategy
