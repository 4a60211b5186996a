// Programs of a model alone, without a loss and its gradients.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/nn/layer.h"
#include "runtime/train/loss.h"

namespace meshtrain::train {

using program::DType;
using program::Program;
using program::TensorType;

// A model alone, on inputs of these names and types: what it predicts is the output `predictions`;
// of a model whose outputs have names, an output of each name, in the model's order. Dropout passes
// on; the variables are only read. `compute`: as a recipe's. Errors: the trace's first.
struct NamedInput {
  std::string name;
  TensorType type;
};
struct Prediction {
  Program program;
  std::vector<program::Variable> variables;  // those of its states
  std::map<std::string, int64_t> rows;       // as Programs::rows, of the inputs
  // Of the variables those that this program alone has, and changes: zeros at first.
  std::vector<program::Variable> kept = {};
};
Result<Prediction> BuildPrediction(nn::Layer& model, std::span<const NamedInput> inputs,
                                   int64_t seed, std::optional<DType> compute = {});

// What a model of sequences says comes behind one of a text's ids. Inputs: the text, ids [1, T] of
// the input's name and type, and `at`, i64[1], which of them; output `next`, [1, C], the logits of
// the ids behind it. Errors: kInvalidArgument, of an input that is no ids, of a model of several
// outputs or one that does not predict [1, T, C], or of a loss that knows no classes; the trace's
// first.
inline constexpr std::string_view kAtName = "at";
Result<Prediction> BuildNext(nn::Layer& model, const NamedInput& text, const Loss& loss,
                             int64_t seed, std::optional<DType> compute = {});

// The same for one id, where the layers can (nn::Layer::by_position). Inputs: the id, [1, 1], and
// `at`, its place in the text, of at most `text`'s length. The program keeps what it needs of the
// ids before, so it runs once for each of them, in their order. Errors: as above; kInvalidArgument
// for a layer that looks at other positions.
Result<Prediction> BuildNextById(nn::Layer& model, const NamedInput& text, const Loss& loss,
                                 int64_t seed, std::optional<DType> compute = {});

// --- what these and the programs of training (programs.h) share

// All that the model predicts for `inputs` in this context, in the order of its outputs, in f32
// whatever it computes in.
std::vector<Value> Predicted(nn::Layer& model, std::span<const Value> inputs, nn::CallContext how);
// Of each input of which every element is an id, the rows of the smallest table: what ops that go
// by numbers take from an input by way of ops that leave all elements there and their numbers as
// they are.
std::map<std::string, int64_t> RowsOf(const Program& program);

}  // namespace meshtrain::train
