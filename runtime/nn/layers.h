// Long: one header that a program includes for every layer there is; each is a screen of
// declarations. The layers there are. Each checks its options and its input when it is first
// called; see layer.h for paths and errors.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/nn/layer.h"

namespace meshtrain::nn {

enum class ActivationKind : uint8_t {
  kLinear,
  kRelu,
  kGelu,
  kSigmoid,
  kTanh,
  kSoftmax,
  kGeluTanh,  // gelu by its tanh approximation
  kSilu,
  kElu,        // with alpha 1
  kLeakyRelu,  // with a slope of 0.2
  kSoftplus
};
std::string_view ActivationName(ActivationKind kind);  // "linear", "relu", ...
// Every name that ParseActivation knows.
const std::vector<std::string>& ActivationNames();
std::optional<ActivationKind> ParseActivation(std::string_view name);
Value Activate(const Value& x, ActivationKind kind);

struct DenseOptions {
  std::string name;
  ActivationKind activation = ActivationKind::kLinear;
  bool use_bias = true;
  Initializer kernel_initializer = Initializer::GlorotUniform();
  Initializer bias_initializer = Initializer::Zeros();
  std::optional<Regularizer> kernel_regularizer;
  std::optional<Regularizer> bias_regularizer;
  std::optional<LayoutSpecs> kernel_layout;
  std::optional<LayoutSpecs> bias_layout;
};

// activation(x @ kernel + bias): [..., in] -> [..., units]; kernel [in, units], bias [units], of
// x's type.
class Dense final : public Layer {
 public:
  explicit Dense(int64_t units, DenseOptions options = {})
      : Layer(options.name), units_(units), options_(std::move(options)) {}
  Dense(Dense&&) = default;
  std::string_view kind() const override { return "dense"; }
  bool by_position() const override { return true; }
  const Parameter& kernel() const { return kernel_; }
  const Parameter& bias() const { return bias_; }

 protected:
  void Build(std::span<const TensorType> inputs) override;
  Value Call(const Value& x) override;

 private:
  int64_t units_;
  DenseOptions options_;
  Parameter kernel_;
  Parameter bias_;
};

using Sizes = std::vector<int64_t>;  // an entry for each spatial dimension, or one for all

struct ConvOptions {
  std::string name;
  Sizes strides = {1};
  Sizes dilations = {1};
  bool same = false;  // pad to ceil(size / stride) positions; else windows lie inside
  int64_t groups = 1;
  ActivationKind activation = ActivationKind::kLinear;
  bool use_bias = true;
  Initializer kernel_initializer = Initializer::GlorotUniform();
  Initializer bias_initializer = Initializer::Zeros();
  std::optional<Regularizer> kernel_regularizer;
  std::optional<Regularizer> bias_regularizer;
  std::optional<LayoutSpecs> kernel_layout;
  std::optional<LayoutSpecs> bias_layout;
};

// activation(conv(x, kernel) + bias) over `spatial` dimensions, 1 to 3: [N, S..., C] ->
// [N, O..., filters]; kernel [sizes..., C / groups, filters], bias [filters].
class Conv final : public Layer {
 public:
  Conv(int spatial, int64_t filters, Sizes kernel_size, ConvOptions options = {})
      : Layer(options.name),
        spatial_(spatial),
        filters_(filters),
        kernel_size_(std::move(kernel_size)),
        options_(std::move(options)) {}
  Conv(Conv&&) = default;
  std::string_view kind() const override;
  const Parameter& kernel() const { return kernel_; }
  const Parameter& bias() const { return bias_; }

 protected:
  void Build(std::span<const TensorType> inputs) override;
  Value Call(const Value& x) override;

 private:
  int spatial_;
  int64_t filters_;
  Sizes kernel_size_;
  ConvOptions options_;
  Parameter kernel_;
  Parameter bias_;
};

// The transpose of the convolution from its output's size to its input's, as a layer of its own:
// [N, S..., C] -> [N, O..., filters] with O = S * stride where `same`, else S * stride + max(reach
// of the kernel - stride, 0). kernel [sizes..., filters, C], bias [filters]; no groups.
class ConvTranspose final : public Layer {
 public:
  ConvTranspose(int spatial, int64_t filters, Sizes kernel_size, ConvOptions options = {})
      : Layer(options.name),
        spatial_(spatial),
        filters_(filters),
        kernel_size_(std::move(kernel_size)),
        options_(std::move(options)) {}
  ConvTranspose(ConvTranspose&&) = default;
  std::string_view kind() const override;

 protected:
  void Build(std::span<const TensorType> inputs) override;
  Value Call(const Value& x) override;

 private:
  int spatial_;
  int64_t filters_;
  Sizes kernel_size_;
  ConvOptions options_;
  Parameter kernel_;
  Parameter bias_;
};

// Each channel with `multiplier` filters of its own: [N, S..., C] -> [N, O..., C * multiplier];
// kernel [sizes..., C, multiplier], bias [C * multiplier]. The options' groups mean nothing here.
class DepthwiseConv final : public Layer {
 public:
  DepthwiseConv(int spatial, Sizes kernel_size, int64_t multiplier = 1, ConvOptions options = {})
      : Layer(options.name),
        spatial_(spatial),
        multiplier_(multiplier),
        kernel_size_(std::move(kernel_size)),
        options_(std::move(options)) {}
  DepthwiseConv(DepthwiseConv&&) = default;
  std::string_view kind() const override;

 protected:
  void Build(std::span<const TensorType> inputs) override;
  Value Call(const Value& x) override;

 private:
  int spatial_;
  int64_t multiplier_;
  Sizes kernel_size_;
  ConvOptions options_;
  Parameter kernel_;
  Parameter bias_;
};

enum class PoolingKind : uint8_t { kMax, kAverage };

struct PoolingOptions {
  std::string name;
  Sizes strides = {};  // none: the pool's size
  bool same = false;
};

// The largest or the mean of each window of `pool_size` over `spatial` dimensions, channel by
// channel: [N, S..., C] -> [N, O..., C]. Padding counts for neither.
class Pooling final : public Layer {
 public:
  Pooling(PoolingKind pooling, int spatial, Sizes pool_size, PoolingOptions options = {})
      : Layer(options.name),
        pooling_(pooling),
        spatial_(spatial),
        pool_size_(std::move(pool_size)),
        options_(std::move(options)) {}
  Pooling(Pooling&&) = default;
  std::string_view kind() const override;

 protected:
  Value Call(const Value& x) override;

 private:
  PoolingKind pooling_;
  int spatial_;
  Sizes pool_size_;
  PoolingOptions options_;
};

// The largest or the mean over all spatial dimensions: [N, S..., C] -> [N, C], or with
// `keep_dims` [N, 1..., C].
class GlobalPooling final : public Layer {
 public:
  GlobalPooling(PoolingKind pooling, int spatial, bool keep_dims = false, std::string name = "")
      : Layer(std::move(name)), pooling_(pooling), spatial_(spatial), keep_dims_(keep_dims) {}
  GlobalPooling(GlobalPooling&&) = default;
  std::string_view kind() const override;

 protected:
  Value Call(const Value& x) override;

 private:
  PoolingKind pooling_;
  int spatial_;
  bool keep_dims_;
};

struct EmbeddingOptions {
  std::string name;
  Initializer embeddings_initializer = Initializer::Uniform(-0.05, 0.05);
  std::optional<Regularizer> embeddings_regularizer;
  std::optional<LayoutSpecs> embeddings_layout;
  program::DType dtype = program::DType::kF32;  // of the table: ids say nothing of it
};

// The rows of `embeddings` [input_dim, output_dim] that ids (i32, i64 or u8) name: [...] ->
// [..., output_dim]. An id outside gives NaN. Split over its rows, the table stays where it is
// unless a step is faster with all of it (`meshtrain plan` lists what is gathered).
class Embedding final : public Layer {
 public:
  Embedding(int64_t input_dim, int64_t output_dim, EmbeddingOptions options = {})
      : Layer(options.name, kInF32),
        input_dim_(input_dim),
        output_dim_(output_dim),
        options_(std::move(options)) {}
  Embedding(Embedding&&) = default;
  std::string_view kind() const override { return "embedding"; }
  bool by_position() const override { return true; }
  const Parameter& embeddings() const { return embeddings_; }

 protected:
  void Build(std::span<const TensorType> inputs) override;
  Value Call(const Value& x) override;

 private:
  int64_t input_dim_;
  int64_t output_dim_;
  EmbeddingOptions options_;
  Parameter embeddings_;
};

struct PositionEmbeddingOptions {
  std::string name;
  Initializer embeddings_initializer = Initializer::GlorotUniform();
  std::optional<Regularizer> embeddings_regularizer;
  std::optional<LayoutSpecs> embeddings_layout;
};

// x [N, T, D] plus a row of `embeddings` [sequence_length, D] for each position: element t of every
// example gets row t. T is at most sequence_length.
class PositionEmbedding final : public Layer {
 public:
  explicit PositionEmbedding(int64_t sequence_length, PositionEmbeddingOptions options = {})
      : Layer(options.name), sequence_length_(sequence_length), options_(std::move(options)) {}
  PositionEmbedding(PositionEmbedding&&) = default;
  std::string_view kind() const override { return "position_embedding"; }
  bool by_position() const override { return true; }

 protected:
  void Build(std::span<const TensorType> inputs) override;
  Value Call(const Value& x) override;

 private:
  int64_t sequence_length_;
  PositionEmbeddingOptions options_;
  Parameter embeddings_;
};

struct AttentionOptions {
  std::string name;
  int64_t key_value_heads = 0;  // 0: as many as heads; else each serves heads / so many of them
  int64_t key_dim = 0;          // the size of a head; 0: features / heads
  bool causal = false;          // a position looks at itself and at those before it
  // Rotary positions (RoFormer, arXiv:2104.09864): the longest wavelength, about. None: queries and
  // keys know nothing of positions.
  std::optional<double> rope_max_wavelength;
  double dropout = 0;           // of the weights that values are summed with, in training
  std::optional<int64_t> seed;  // of dropout; none: the program's
  bool use_bias = true;
  Initializer kernel_initializer = Initializer::GlorotUniform();
  Initializer bias_initializer = Initializer::Zeros();
  std::optional<Regularizer> kernel_regularizer;
  std::optional<Regularizer> bias_regularizer;
  std::optional<LayoutSpecs> query_kernel_layout, query_bias_layout;
  std::optional<LayoutSpecs> key_kernel_layout, key_bias_layout;
  std::optional<LayoutSpecs> value_kernel_layout, value_bias_layout;
  std::optional<LayoutSpecs> output_kernel_layout, output_bias_layout;
};

// Attention of a sequence to itself, x [N, T, D] -> [N, T, D]: for each head
//   softmax(query key^T / sqrt(key_dim)) value
// over the sequence, and the heads' results side by side through `output`. Weights query.kernel [D,
// heads * key_dim], key.kernel and value.kernel [D, key_value_heads * key_dim], output.kernel
// [heads * key_dim, D], and a bias of each: head h has the columns h * key_dim and those after it.
//
// A second input is a mask, bools or numbers [N, T]: a position whose element is false or 0, as one
// that pads a short text, has no weight for any position; beside it `causal` holds as ever. Of a
// position for which nothing is left the weights are 0, and the result is output's bias (Keras
// takes the mean of all values): never NaN, and for a loss to leave out.
//
// Layouts decide what is split: the batch, the heads (query, key and value by columns, output by
// rows; the axes must divide the key/value heads, Parameter::LayoutOn), the sequence (of keys and
// values each device then takes all).
class MultiHeadAttention final : public Layer {
 public:
  explicit MultiHeadAttention(int64_t heads, AttentionOptions options = {})
      : Layer(options.name), heads_(heads), options_(std::move(options)) {}
  MultiHeadAttention(MultiHeadAttention&&) = default;
  std::string_view kind() const override { return "multi_head_attention"; }
  bool by_position() const override { return options_.causal; }

 protected:
  void Build(std::span<const TensorType> inputs) override;
  Value CallMany(std::span<const Value> inputs) override;

 private:
  struct Projection {
    Parameter kernel, bias;
  };
  Projection MakeProjection(std::string_view name, program::DType dtype, int64_t in, int64_t out,
                            bool heads_first, const std::optional<LayoutSpecs>& kernel_layout,
                            const std::optional<LayoutSpecs>& bias_layout);
  Value Project(const Value& x, const Projection& projection) const;
  Value Turned(const Value& x) const;
  Value Weigh(const Value& scores, const Value* mask) const;

  int64_t heads_;
  int64_t groups_ = 0;  // key/value heads
  int64_t key_dim_ = 0;
  AttentionOptions options_;
  Projection query_, key_, value_, output_;
};

// [N, ...] -> [N, product of the others]; [N] -> [N, 1].
class Flatten final : public Layer {
 public:
  explicit Flatten(std::string name = "") : Layer(std::move(name)) {}
  Flatten(Flatten&&) = default;
  std::string_view kind() const override { return "flatten"; }

 protected:
  Value Call(const Value& x) override;
};

// [N, ...] -> [N, dims...]; one of `dims` may be -1.
class Reshape final : public Layer {
 public:
  explicit Reshape(program::Dims dims, std::string name = "")
      : Layer(std::move(name)), dims_(std::move(dims)) {}
  Reshape(Reshape&&) = default;
  std::string_view kind() const override { return "reshape"; }

 protected:
  Value Call(const Value& x) override;

 private:
  program::Dims dims_;
};

// The dimensions of each example in another order, counted from 1: {2, 1} makes [N, a, b] [N, b,
// a].
class Permute final : public Layer {
 public:
  explicit Permute(std::vector<int64_t> dims, std::string name = "")
      : Layer(std::move(name)), dims_(std::move(dims)) {}
  Permute(Permute&&) = default;
  std::string_view kind() const override { return "permute"; }

 protected:
  Value Call(const Value& x) override;

 private:
  std::vector<int64_t> dims_;
};

// [N, D] -> [N, times, D]: each example `times` times.
class RepeatVector final : public Layer {
 public:
  explicit RepeatVector(int64_t times, std::string name = "")
      : Layer(std::move(name)), times_(times) {}
  RepeatVector(RepeatVector&&) = default;
  std::string_view kind() const override { return "repeat_vector"; }

 protected:
  Value Call(const Value& x) override;

 private:
  int64_t times_;
};

class Activation final : public Layer {
 public:
  explicit Activation(ActivationKind activation, std::string name = "")
      : Layer(std::move(name)), activation_(activation) {}
  Activation(Activation&&) = default;
  std::string_view kind() const override { return "activation"; }
  bool by_position() const override { return true; }

 protected:
  Value Call(const Value& x) override { return Activate(x, activation_); }

 private:
  ActivationKind activation_;
};

// In training, zeroes each element with probability `rate` and scales the others by 1 / (1 - rate);
// else passes x on. Draws from the layer's path, the step and `seed` (the program's without one):
// the same on any layout.
class Dropout final : public Layer {
 public:
  explicit Dropout(double rate, std::optional<int64_t> seed = {}, std::string name = "")
      : Layer(std::move(name)), rate_(rate), seed_(seed) {}
  Dropout(Dropout&&) = default;
  std::string_view kind() const override { return "dropout"; }
  bool by_position() const override { return true; }

 protected:
  Value Call(const Value& x) override;

 private:
  double rate_;
  std::optional<int64_t> seed_;
};

// What the layers that normalise have in common; the formulas and defaults are Keras'.
struct NormalizationOptions {
  std::string name;
  std::optional<double> epsilon;  // none: 1e-3, RmsNormalization's 1e-6
  bool center = true;             // adds beta
  bool scale = true;              // multiplies by gamma
  Initializer beta_initializer = Initializer::Zeros();
  Initializer gamma_initializer = Initializer::Ones();
  std::optional<Regularizer> beta_regularizer;
  std::optional<Regularizer> gamma_regularizer;
  std::optional<LayoutSpecs> beta_layout;
  std::optional<LayoutSpecs> gamma_layout;  // RmsNormalization's scale
};
struct BatchNormalizationOptions : NormalizationOptions {
  int64_t axis = -1;  // of the channels
  double momentum = 0.99;
  Initializer moving_mean_initializer = Initializer::Zeros();
  Initializer moving_variance_initializer = Initializer::Ones();
  std::optional<LayoutSpecs> moving_mean_layout;
  std::optional<LayoutSpecs> moving_variance_layout;
};

// (x - mean) / sqrt(variance + epsilon) * gamma + beta, channel by channel. In training the mean
// and the (biased) variance are the batch's, all of it, whatever devices hold it; the step moves
// moving_mean and moving_variance towards them, `moving * momentum + batch * (1 - momentum)`.
// Outside training those are used. gamma, beta and both are of [channels].
class BatchNormalization final : public Layer {
 public:
  explicit BatchNormalization(BatchNormalizationOptions options = {})
      : Layer(options.name, kInF32), options_(std::move(options)) {}
  BatchNormalization(BatchNormalization&&) = default;
  std::string_view kind() const override { return "batch_normalization"; }
  bool by_position() const override { return options_.axis == -1; }

 protected:
  void Build(std::span<const TensorType> inputs) override;
  Value Call(const Value& x) override;

 private:
  BatchNormalizationOptions options_;
  Parameter gamma_, beta_, moving_mean_, moving_variance_;
};

// The same over the dimensions `axes` of each example; gamma and beta have those dimensions.
class LayerNormalization final : public Layer {
 public:
  explicit LayerNormalization(std::vector<int64_t> axes = {-1}, NormalizationOptions options = {})
      : Layer(options.name, kInF32), axes_(std::move(axes)), options_(std::move(options)) {}
  LayerNormalization(LayerNormalization&&) = default;
  std::string_view kind() const override { return "layer_normalization"; }
  bool by_position() const override { return axes_ == std::vector<int64_t>{-1}; }

 protected:
  void Build(std::span<const TensorType> inputs) override;
  Value Call(const Value& x) override;

 private:
  std::vector<int64_t> axes_;
  NormalizationOptions options_;
  Parameter gamma_, beta_;
};

// The same over each of `groups` groups of neighbouring channels, the last dimension, and all that
// lies between it and the examples: [N, ..., C]. groups = -1: each channel for itself.
class GroupNormalization final : public Layer {
 public:
  explicit GroupNormalization(int64_t groups = 32, NormalizationOptions options = {})
      : Layer(options.name, kInF32), groups_(groups), options_(std::move(options)) {}
  GroupNormalization(GroupNormalization&&) = default;
  std::string_view kind() const override { return "group_normalization"; }

 protected:
  void Build(std::span<const TensorType> inputs) override;
  Value Call(const Value& x) override;

 private:
  int64_t groups_;
  NormalizationOptions options_;
  Parameter gamma_, beta_;
};

// x / sqrt(mean of x^2 + epsilon) * scale over the dimensions `axes` of each example.
class RmsNormalization final : public Layer {
 public:
  explicit RmsNormalization(std::vector<int64_t> axes = {-1}, NormalizationOptions options = {})
      : Layer(options.name, kInF32), axes_(std::move(axes)), options_(std::move(options)) {}
  RmsNormalization(RmsNormalization&&) = default;
  std::string_view kind() const override { return "rms_normalization"; }
  bool by_position() const override { return axes_ == std::vector<int64_t>{-1}; }

 protected:
  void Build(std::span<const TensorType> inputs) override;
  Value Call(const Value& x) override;

 private:
  std::vector<int64_t> axes_;
  NormalizationOptions options_;  // of these the epsilon, the name and gamma's count
  Parameter scale_;
};

enum class MergeKind : uint8_t { kAdd, kSubtract, kMultiply, kAverage, kMaximum, kMinimum };

// Element by element one of its inputs, which are of one type: their sum, product, mean, largest or
// least; or the first less the second, of two.
class Merge : public Layer {
 public:
  explicit Merge(MergeKind merge, std::string name = "") : Layer(std::move(name)), merge_(merge) {}
  Merge(Merge&&) = default;
  std::string_view kind() const override;
  bool by_position() const override { return true; }

 protected:
  Value CallMany(std::span<const Value> inputs) override;

 private:
  MergeKind merge_;
};
class Add final : public Merge {
 public:
  explicit Add(std::string name = "") : Merge(MergeKind::kAdd, std::move(name)) {}
};
class Multiply final : public Merge {
 public:
  explicit Multiply(std::string name = "") : Merge(MergeKind::kMultiply, std::move(name)) {}
};

// Its inputs joined along `axis` (negative: from the end).
class Concatenate final : public Layer {
 public:
  explicit Concatenate(int64_t axis = -1, std::string name = "")
      : Layer(std::move(name)), axis_(axis) {}
  Concatenate(Concatenate&&) = default;
  std::string_view kind() const override { return "concatenate"; }
  bool by_position() const override { return axis_ == -1; }

 protected:
  Value CallMany(std::span<const Value> inputs) override;

 private:
  int64_t axis_;
};

}  // namespace meshtrain::nn
