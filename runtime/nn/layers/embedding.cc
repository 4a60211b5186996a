#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {

void Embedding::Build(std::span<const TensorType> inputs) {
  const TensorType& x = inputs[0];
  for (const auto& [what, size] :
       {std::pair{"input_dim", input_dim_}, std::pair{"output_dim", output_dim_}}) {
    if (size > 0) continue;
    return Fail(
        InvalidArgument(std::string(what) + " must be at least 1, got: " + std::to_string(size)));
  }
  if (x.dtype != program::DType::kI32 && x.dtype != program::DType::kI64 &&
      x.dtype != program::DType::kU8) {
    return Fail(InvalidArgument("embedding takes ids of i32, i64 or u8, got: " + x.ToString() +
                                " (cast the input)"));
  }
  embeddings_ = AddParameter(
      "embeddings", {options_.dtype, {input_dim_, output_dim_}}, options_.embeddings_initializer,
      {.layout = options_.embeddings_layout, .regularizer = options_.embeddings_regularizer});
}

Value Embedding::Call(const Value& x) {
  const Value ids = x.dtype() == program::DType::kU8 ? program::Cast(x, program::DType::kI32) : x;
  return program::Gather(embeddings_, ids);
}

namespace by_name {

LayerPtr Embedding(const std::string& name, const Options& given) {
  EmbeddingOptions options{.name = name};
  options.embeddings_initializer =
      InitializerOf(given, "embeddings_initializer", options.embeddings_initializer);
  options.embeddings_regularizer = RegularizerOf(given, "embeddings_regularizer");
  options.embeddings_layout = given.Texts("embeddings_layout");
  if (const auto dtype = mesh::ParseDType(given.Text("dtype")); dtype.ok()) options.dtype = *dtype;
  return Make<nn::Embedding>(given.Int("input_dim", 1), given.Int("output_dim", 1),
                             std::move(options));
}

}  // namespace by_name
}  // namespace meshtrain::nn
