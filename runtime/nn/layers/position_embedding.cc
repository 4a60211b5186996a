#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {

void PositionEmbedding::Build(std::span<const TensorType> inputs) {
  const TensorType& x = inputs[0];
  if (sequence_length_ < 0) {
    return Fail(InvalidArgument("sequence_length must be at least 1, got: " +
                                std::to_string(sequence_length_)));
  }
  if (x.rank() != 3 || !mesh::IsFloat(x.dtype)) {
    return Fail(InvalidArgument("position_embedding takes floats [N, T, D], got: " + x.ToString()));
  }
  if (sequence_length_ == 0) sequence_length_ = x.dims[1];  // none was given
  embeddings_ = AddParameter(
      "embeddings", {x.dtype, {sequence_length_, x.dims[2]}}, options_.embeddings_initializer,
      {.layout = options_.embeddings_layout, .regularizer = options_.embeddings_regularizer});
}

Value PositionEmbedding::Call(const Value& x) {
  const Writing* const writing = context().writing;
  const int64_t length = writing != nullptr ? writing->length : x.rank() == 3 ? x.dims()[1] : 0;
  if (length > sequence_length_) {
    Fail(InvalidArgument("expected sequences of at most sequence_length, " +
                         std::to_string(sequence_length_) + ", got: " + x.type().ToString()));
    return x;
  }
  if (writing != nullptr) {
    return x + program::Reshape(program::Gather(embeddings_, writing->position), x.dims());
  }
  if (length == sequence_length_) return x + embeddings_;
  return x + program::Slice(embeddings_, {0, 0}, {length, -1});
}

namespace by_name {

LayerPtr PositionEmbedding(const std::string& name, const Options& given) {
  PositionEmbeddingOptions options{.name = name};
  options.embeddings_initializer =
      InitializerOf(given, "embeddings_initializer", options.embeddings_initializer);
  options.embeddings_regularizer = RegularizerOf(given, "embeddings_regularizer");
  options.embeddings_layout = given.Texts("embeddings_layout");
  return Make<nn::PositionEmbedding>(given.Int("sequence_length", 0), std::move(options));
}

}  // namespace by_name
}  // namespace meshtrain::nn
