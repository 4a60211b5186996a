// One step, said three ways: in the manifest, with Sequential and the library's optimizer, and by
// hand as the tutorial does it. The programs must be equal by hash.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <set>
#include <string>

#include "runtime/base/file.h"
#include "runtime/program/ops.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {
namespace {

using manifest::Program;

using mesh::DType;
using mesh::TensorType;
using nn::ActivationKind;
using nn::Parameter;
using program::Builder;
using program::HashProgram;
using program::Value;

const TensorType kImages{DType::kF32, {128, 28, 28}};
const TensorType kLabels{DType::kI32, {128}};

Program Read(std::string_view text, std::string_view file = "job.yaml") {
  auto manifest = ParseManifest(text, file);
  EXPECT_TRUE(manifest.ok()) << manifest.status().message();
  return manifest.ok() ? std::move(manifest->program) : Program{};
}

Program ReadExample(const std::string& name) {
  const auto text = ReadFile(std::string(MT_TESTDATA) + "/../../deploy/examples/" + name);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return Read(text.ok() ? *text : "", name);
}

// --- by hand: the tutorial's classes in C++

class DenseLayer {
 public:
  using Activation = Value (*)(const program::Operand&);
  DenseLayer(const std::string& name, int64_t in, int64_t out, const mesh::Layout& weight_layout,
             Activation activation = nullptr)
      : w(name + ".kernel", {in, out}, nn::Initializer::XavierUniform(nn::Seed{22, 23}),
          weight_layout),
        b(name + ".bias", {out}, nn::Initializer::Zeros(), weight_layout.Delete({0})),
        activation_(activation) {}

  Value operator()(const Value& x) const {
    const Value y = MatMul(x, w) + b;
    return activation_ != nullptr ? activation_(y) : y;
  }

  Parameter w;
  Parameter b;

 private:
  Activation activation_;
};

class Mlp {
 public:
  explicit Mlp(std::vector<DenseLayer> layers) : layers_(std::move(layers)) {}
  Value operator()(Value x) const {
    for (const DenseLayer& layer : layers_) x = layer(x);
    return x;
  }
  std::vector<Parameter> Weights() const {
    std::vector<Parameter> all;
    for (const DenseLayer& layer : layers_) {
      all.push_back(layer.w);
      all.push_back(layer.b);
    }
    return all;
  }

 private:
  std::vector<DenseLayer> layers_;
};

class OwnAdam {
 public:
  explicit OwnAdam(std::vector<Parameter> weights) : weights_(std::move(weights)) {
    for (const Parameter& w : weights_) {
      v.emplace_back("optimizer.m." + w.name(), w.type(), nn::Initializer::Zeros());
      s.emplace_back("optimizer.v." + w.name(), w.type(), nn::Initializer::Zeros());
    }
  }

  void ApplyGradients(const std::vector<Value>& gradients) {
    for (size_t i = 0; i < weights_.size(); ++i) {
      const Value& g = gradients[i];
      Assign(v[i], beta_1 * v[i] + (1 - beta_1) * g);
      Assign(s[i], beta_2 * s[i] + (1 - beta_2) * Square(g));
      // Each correction where the tutorial has it, in the loop.
      const Value v_bc = v[i] / Cast(1.0 - Pow(beta_1, t), DType::kF32);
      const Value s_bc = s[i] / Cast(1.0 - Pow(beta_2, t), DType::kF32);
      AssignSub(weights_[i], learning_rate * (v_bc / (Sqrt(s_bc) + epsilon)));
    }
    AssignAdd(t, 1.0);
  }

  double learning_rate = 1e-3, beta_1 = 0.9, beta_2 = 0.999, epsilon = 1e-7;
  std::vector<Parameter> v, s;
  Parameter t{"optimizer.t", TensorType{DType::kF64, {}}, nn::Initializer::Ones()};

 private:
  std::vector<Parameter> weights_;
};

struct ByHand {
  program::Program train_step, eval_step, init;
};

ByHand TraceByHand() {
  const mesh::Mesh mesh = *mesh::Mesh::Create({{"batch", 8}});
  const mesh::Layout weight_layout = mesh::Layout::Replicated(mesh, 2);
  const Mlp model({DenseLayer("hidden_1", 784, 700, weight_layout, program::Relu),
                   DenseLayer("hidden_2", 700, 500, weight_layout, program::Relu),
                   DenseLayer("logits", 500, 10, weight_layout)});
  OwnAdam optimizer(model.Weights());
  const auto loss_and_accuracy = [&](Builder& b) {
    const Value x = Reshape(b.Input("x", kImages), {-1, 784});
    const Value y = b.Input("y", kLabels);
    const Value predictions = model(x);
    const Value loss = ReduceMean(SparseSoftmaxCrossEntropy(predictions, y));
    b.Output("loss", loss);
    b.Output("accuracy",
             ReduceMean(Cast(Equal(ArgMax(predictions, -1), Cast(y, DType::kI64)), DType::kF32)));
    return loss;
  };
  ByHand out;
  {
    Builder b("train_step");
    Builder::Scope scope(b);
    const Value loss = loss_and_accuracy(b);
    std::vector<program::Variable> weights;
    for (const Parameter& w : model.Weights()) weights.push_back(w);
    optimizer.ApplyGradients(b.Gradient(loss, std::span<const program::Variable>(weights)));
    auto program = b.Build();
    EXPECT_TRUE(program.ok()) << program.status().ToString();
    out.train_step = std::move(*program);
  }
  {
    Builder b("eval_step");
    Builder::Scope scope(b);
    loss_and_accuracy(b);
    out.eval_step = *b.Build();
  }
  {
    Builder b("init");
    Builder::Scope scope(b);
    for (const Parameter& w : model.Weights()) {
      if (w.dims().size() == 2) {
        const float limit =
            std::sqrt(6.0f) / std::sqrt(static_cast<float>(w.dims()[0] + w.dims()[1]));
        Assign(w, program::StatelessUniform(w.dims(), {22, 23}, -limit, limit));
      } else {
        Assign(w, program::Zeros(w.dims()));
      }
    }
    for (size_t i = 0; i < optimizer.v.size(); ++i) {
      Assign(optimizer.v[i], program::Zeros(optimizer.v[i].dims()));
      Assign(optimizer.s[i], program::Zeros(optimizer.s[i].dims()));
    }
    Assign(optimizer.t, program::Fill({}, 1, DType::kF64));
    out.init = *b.Build();
  }
  return out;
}

TEST(BuildTest, TheManifestTheLibraryAndHandWrittenCodeAreOneProgram) {
  const auto declared = Build(ReadExample("mnist-mlp.yaml"), {kImages, kLabels});
  ASSERT_TRUE(declared.ok()) << declared.status().message();

  const auto dense = [](int64_t units, std::string name, ActivationKind activation) {
    return nn::Dense(units,
                     {.name = std::move(name),
                      .activation = activation,
                      .kernel_initializer = nn::Initializer::XavierUniform(nn::Seed{22, 23})});
  };
  train::Recipe recipe;
  recipe.model = std::make_shared<nn::Sequential>(
      nn::Flatten(), dense(700, "hidden_1", ActivationKind::kRelu),
      dense(500, "hidden_2", ActivationKind::kRelu), dense(10, "logits", ActivationKind::kLinear));
  recipe.heads[0].loss = train::losses::SparseCategoricalCrossentropy({.from_logits = true});
  recipe.optimizer = train::AdamPaper();
  recipe.heads[0].metrics = {train::metrics::Accuracy()};
  const auto library = train::BuildPrograms(recipe, kImages, kLabels);
  ASSERT_TRUE(library.ok()) << library.status().message();

  const ByHand hand = TraceByHand();
  EXPECT_EQ(HashProgram(declared->programs.train_step), HashProgram(library->train_step));
  EXPECT_EQ(HashProgram(declared->programs.eval_step), HashProgram(library->eval_step));
  EXPECT_EQ(HashProgram(declared->programs.init), HashProgram(library->init));
  EXPECT_EQ(HashProgram(declared->programs.train_step), HashProgram(hand.train_step))
      << declared->programs.train_step.ToString() << hand.train_step.ToString();
  EXPECT_EQ(HashProgram(declared->programs.eval_step), HashProgram(hand.eval_step));
  EXPECT_EQ(HashProgram(declared->programs.init), HashProgram(hand.init))
      << declared->programs.init.ToString() << hand.init.ToString();

  // The test can fail: another learning rate is another program.
  recipe.optimizer = train::AdamPaper({.common = {.learning_rate = 2e-3}});
  const auto other = train::BuildPrograms(recipe, kImages, kLabels);
  ASSERT_TRUE(other.ok());
  EXPECT_NE(HashProgram(other->train_step), HashProgram(hand.train_step));
}

TEST(BuildTest, TheMlpsTrainStepReadsLikeThis) {
  const auto traced = Build(ReadExample("mnist-mlp.yaml"), {kImages, kLabels});
  ASSERT_TRUE(traced.ok()) << traced.status().message();
  const std::string path = std::string(MT_TESTDATA) + "/spec/mnist_mlp_train_step.txt";
  const std::string text = traced->programs.train_step.ToString();
  if (std::getenv("MT_UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(WriteFileAtomically(path, text).ok());
  }
  const auto golden = ReadFile(path);
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  EXPECT_EQ(text, *golden);
  const auto parsed = program::ParseProgram(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(HashProgram(*parsed), HashProgram(traced->programs.train_step));
}

TEST(BuildTest, TheShortLastBatchGoesOnWithTheSameStates) {
  const auto declared = Declared::Create(ReadExample("mnist-mlp.yaml"));
  ASSERT_TRUE(declared.ok());
  const auto full = declared->Trace({kImages, kLabels});
  const auto last =
      declared->Trace({TensorType{DType::kF32, {8, 28, 28}}, TensorType{DType::kI32, {8}}});
  ASSERT_TRUE(full.ok() && last.ok());
  const auto a = full->programs.States();
  const auto b = last->programs.States();
  ASSERT_EQ(a.size(), 19u);  // six weights, two slots of each, t
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i], b[i]) << a[i].name();
  EXPECT_EQ(HashProgram(full->programs.init), HashProgram(last->programs.init));
  EXPECT_NE(HashProgram(full->programs.train_step), HashProgram(last->programs.train_step));

  EXPECT_EQ(declared->Trace({TensorType{DType::kF32, {5, 28, 28}}, TensorType{DType::kI32, {5}}})
                .status()
                .message(),
            "mnist-mlp.yaml:35:14: program.data.batch: x f32[5,28,28], the short last batch, does "
            "not divide over "
            "{batch, *, *} of mesh batch=8 (data.drop_remainder: true leaves it out of training, "
            "data.uneven: true takes it)");
}

// Dense(3) of x f32[4,5] over batch: 2; "x"'s labels f32[4,3].
Batches SmallBatches(std::set<int64_t> sizes, DType labels = DType::kF32) {
  return {{TensorType{DType::kF32, {4, 5}}, TensorType{labels, {4, 3}}}, std::move(sizes)};
}

TEST(BuildTest, EveryBatchOfTheDataMustDivideWhereTheMeshIsNotUneven) {
  const auto check = [](const std::string& data, std::set<int64_t> train,
                        std::optional<Batches> test) {
    const std::string text =
        "mesh: {batch: 2}\n"
        "data:\n"
        "  train: {idx: {images: a, labels: b}}\n"
        "  test: {idx: {images: c, labels: d}}\n"
        "  batch: 4\n" +
        data +
        "model:\n"
        "  - dense: {units: 3}\n"
        "loss: mse\n"
        "optimizer: sgd\n";
    return Declared::Create(Read(text))
        ->CheckBatches(SmallBatches(std::move(train)), test)
        .message();
  };
  const std::string place = "job.yaml:5:10: program.data.batch: ";
  EXPECT_EQ(check("", {4, 2}, SmallBatches({4, 2})), "");
  EXPECT_EQ(
      check("", {4, 3}, std::nullopt),
      place +
          "x f32[3,5], the short last batch of data.train, does not divide over {batch, *} of "
          "mesh batch=2 (data.drop_remainder: true leaves it out of training, data.uneven: "
          "true takes it)");
  // Dropping is for training only.
  EXPECT_EQ(check("  drop_remainder: true\n", {4}, SmallBatches({4, 1})),
            place +
                "x f32[1,5], the short last batch of data.test, does not divide over {batch, *} of "
                "mesh batch=2 (data.uneven: true takes it)");
  EXPECT_EQ(check("  uneven: true\n", {4, 3}, SmallBatches({4, 1})), "");
  // Shapes and types of both are the program's.
  EXPECT_EQ(check("", {4}, SmallBatches({4}, DType::kI32)),
            "job.yaml:4:9: program.data.test: expected batches as the training data's, f32[4,5], "
            "f32[4,3], got: f32[4,5], i32[4,3]");
}

TEST(BuildTest, LabelsThatDoNotFitTheLossAreRefusedAtItsLine) {
  const auto message = [](const std::string& loss, const TensorType& labels, int64_t units = 3) {
    const std::string text =
        "data: {train: {idx: {images: a, labels: b}}, batch: 4}\n"
        "model:\n"
        "  - dense: {units: " +
        std::to_string(units) +
        "}\n"
        "loss: " +
        loss + "\noptimizer: sgd\n";
    return Build(Read(text), {TensorType{DType::kF32, {4, 5}}, labels}).status().message();
  };
  const TensorType floats{DType::kF32, {4}}, wholes{DType::kI32, {4}};
  EXPECT_EQ(message("sparse_categorical_crossentropy", floats),
            "job.yaml:4:1: program.loss: sparse_categorical_crossentropy takes class numbers (u8, "
            "i32, i64), got: labels f32[4] (labels_as: i32 takes whole numbers as class numbers)");
  EXPECT_EQ(message("categorical_crossentropy", wholes),
            "job.yaml:4:1: program.loss: categorical_crossentropy takes a number for each class "
            "[N, classes], got: labels i32[4]");
  // One label for three predictions, or for four, which would have been spread over all of them.
  EXPECT_EQ(message("mse", floats),
            "job.yaml:2:1: program.model: mean_squared_error of predictions f32[4,3] takes labels "
            "f32[4,3], got: labels f32[4]");
  EXPECT_EQ(message("mse", floats, 4),
            "job.yaml:2:1: program.model: mean_squared_error of predictions f32[4,4] takes labels "
            "f32[4,4], got: labels f32[4]");
  for (const char* loss : {"mse", "mae", "{binary_crossentropy: {from_logits: true}}"}) {
    EXPECT_EQ(message(loss, floats, 1), "") << loss;
    EXPECT_EQ(message(loss, wholes, 1), "") << loss;
  }
  EXPECT_EQ(message("sparse_categorical_crossentropy", wholes), "");
  EXPECT_EQ(message("sparse_categorical_crossentropy", TensorType{DType::kU8, {4}}), "");
}

TEST(BuildTest, RulesGiveLayoutsToWeightsAndTheirSlots) {
  const auto traced = Build(ReadExample("mnist-mlp-model-parallel.yaml"), {kImages, kLabels});
  ASSERT_TRUE(traced.ok()) << traced.status().message();
  const auto text = [&](const std::map<std::string, mesh::Layout>& layouts,
                        const std::string& name) {
    const auto layout = layouts.find(name);
    return layout == layouts.end() ? "none" : layout->second.ToString();
  };
  EXPECT_EQ(traced->mesh.ToString(), "batch=4,model=2");
  EXPECT_EQ(text(traced->layouts.inputs, "x"), "{batch, *, *}");
  EXPECT_EQ(text(traced->layouts.inputs, "y"), "{batch}");
  EXPECT_EQ(text(traced->layouts.states, "feature.kernel"), "{*, model}");
  EXPECT_EQ(text(traced->layouts.states, "feature.bias"), "{model}");
  EXPECT_EQ(text(traced->layouts.states, "feature_2.kernel"), "{model, *}");
  EXPECT_EQ(text(traced->layouts.states, "feature_2.bias"), "{*}");
  EXPECT_EQ(text(traced->layouts.states, "optimizer.m.feature.kernel"), "{*, model}");
  EXPECT_EQ(text(traced->layouts.states, "optimizer.v.feature_2.kernel"), "{model, *}");
  EXPECT_EQ(text(traced->layouts.states, "optimizer.iterations"), "{}");
  EXPECT_EQ(text(traced->layouts.states, "step"), "{}");  // of dropout
  EXPECT_EQ(traced->layouts.states.size(), traced->programs.States().size());
}

TEST(BuildTest, TheUpdateIsSharedWhereProcessesShareTheMeshOrWhereAskedFor) {
  const auto slots = [](const std::string& layout, int64_t processes) -> std::string {
    const std::string text =
        "mesh: {batch: 4}\n"
        "data: {train: {idx: {images: a, labels: b}}, batch: 128}\n"
        "model:\n"
        "  - flatten\n"
        "  - dense: {units: 700}\n"
        "loss: mse\n"
        "optimizer: adam\n" +
        layout;
    const auto manifest = ParseManifest(text, "job.yaml", {.processes = processes});
    if (!manifest.ok()) return manifest.status().message();
    const auto traced = Build(manifest->program, {kImages, TensorType{DType::kF32, {128, 700}}});
    if (!traced.ok()) return traced.status().message();
    return traced->layouts.states.at("dense.kernel").ToString() + " " +
           traced->layouts.states.at("optimizer.m.dense.kernel").ToString() + " " +
           traced->layouts.states.at("optimizer.m.dense.bias").ToString();
  };
  EXPECT_EQ(slots("", 1), "{*, *} {*, *} {*}");
  EXPECT_EQ(slots("", 2), "{*, *} {batch, *} {*}");
  EXPECT_EQ(slots("layout: {update: copied}\n", 2), "{*, *} {*, *} {*}");
  EXPECT_EQ(slots("layout: {update: shared}\n", 1), "{*, *} {batch, *} {*}");
  EXPECT_EQ(
      slots("layout: {update: both}\n", 1),
      "job.yaml:8:18: program.layout.update: expected one of auto, shared, copied, got: both");
}

const char* const kSmall =
    "mesh: {batch: 2}\n"
    "data: {train: {idx: {images: a, labels: b}}, batch: 4}\n"
    "model:\n"
    "  - dense: {units: 3}\n"
    "loss: mse\n"
    "optimizer: sgd\n";

TEST(BuildTest, ALayerThatDoesNotFitItsInputNamesItsLineInTheManifest) {
  const auto built =
      Build(Read(kSmall), {TensorType{DType::kU8, {4, 5}}, TensorType{DType::kF32, {4, 3}}});
  ASSERT_FALSE(built.ok());
  EXPECT_TRUE(built.status().message().starts_with("job.yaml:4:5: program.model[0].dense: "))
      << built.status().message();
  EXPECT_TRUE(built.status().message().ends_with(
      "dense: dense takes floats [..., features], got: u8[4,5] (scale or cast the input)"))
      << built.status().message();
}

TEST(BuildTest, AnOpOfALayerIsOfTheLineThatDeclaresIt) {
  const Program program = ReadExample("mnist-mlp.yaml");
  const auto built = Build(program, {kImages, kLabels});
  ASSERT_TRUE(built.ok()) << built.status().message();
  std::set<std::string> lines;
  for (const program::Op& op : built->programs.train_step.ops) {
    if (op.kind == "matmul") lines.insert(op.where.ToString());
  }
  std::set<std::string> want;  // forward and backward
  for (const manifest::Layer& layer : program.model.layers) {
    if (layer.kind == "dense") {
      want.insert("mnist-mlp.yaml:" + std::to_string(layer.spot.place.line));
    }
  }
  EXPECT_EQ(want.size(), 3u);
  EXPECT_EQ(lines, want);
}

TEST(BuildTest, InputLayoutsMustFitTheData) {
  const std::string text = std::string(kSmall) + "layout: {inputs: {x: [batch]}}\n";
  EXPECT_EQ(Build(Read(text), {TensorType{DType::kF32, {4, 5}}, TensorType{DType::kF32, {4, 3}}})
                .status()
                .message(),
            "job.yaml:7:1: program.layout.inputs: layout [batch] has 1 entry, but `x` has rank 2");
}

// Wide enough that splitting its weights pays.
std::string Wide(int64_t units) {
  return "mesh: {batch: 2, model: 4}\n"
         "data: {train: {idx: {images: a, labels: b}}, batch: 64}\n"
         "model:\n"
         "  - dense: {name: wide, units: " +
         std::to_string(units) +
         "}\n"
         "  - dense: {name: out, units: 4}\n"
         "loss: mse\n"
         "optimizer: adam\n"
         "layout: auto\n";
}

TEST(BuildTest, AnAutomaticLayoutIsChosenByCost) {
  const auto types = [](int64_t batch) {
    return std::vector<TensorType>{{DType::kF32, {batch, 512}}, {DType::kF32, {batch, 4}}};
  };
  const auto traced = Build(Read(Wide(1024)), types(64));
  ASSERT_TRUE(traced.ok()) << traced.status().message();
  EXPECT_EQ(traced->layouts.inputs.size(), 2u);
  EXPECT_EQ(traced->layouts.states.size(), traced->programs.States().size());
  const mesh::Layout& kernel = traced->layouts.states.at("wide.kernel");
  EXPECT_TRUE(kernel.Uses(*traced->mesh.FindAxis("model"))) << kernel.ToString();
  // Its slots lie as it does, and a short last batch finds the same.
  int slots = 0;
  for (const auto& [name, layout] : traced->layouts.states) {
    if (!name.starts_with("optimizer.") || !name.ends_with(".wide.kernel")) continue;
    ++slots;
    EXPECT_EQ(layout, kernel) << name;
  }
  EXPECT_EQ(slots, 2);
  const auto last = Build(Read(Wide(1024)), types(2));
  ASSERT_TRUE(last.ok()) << last.status().message();
  EXPECT_EQ(last->layouts.states, traced->layouts.states);
}

TEST(BuildTest, AnAxisThatAnAutomaticLayoutGainsNothingByIsRefused) {
  const auto built =
      Build(Read(Wide(2)), {TensorType{DType::kF32, {64, 3}}, TensorType{DType::kF32, {64, 4}}});
  ASSERT_FALSE(built.ok());
  EXPECT_TRUE(built.status().message().starts_with(
      "job.yaml:8:1: program.layout: auto: no split of a weight over it makes the step faster; "))
      << built.status().message();
  EXPECT_TRUE(built.status().message().find("axis `model`") != std::string::npos);
}

TEST(BuildTest, AFunctionalDeclarationIsTheSequentialOne) {
  const std::string functional =
      "mesh: {batch: 2}\n"
      "data: {train: {idx: {images: a, labels: b}}, batch: 4}\n"
      "model: {layers: [dense: {units: 3, inputs: x}], output: dense}\n"
      "loss: mse\n"
      "optimizer: sgd\n";
  const std::vector<TensorType> types = {TensorType{DType::kF32, {4, 5}},
                                         TensorType{DType::kF32, {4, 3}}};
  const auto a = Build(Read(kSmall), types);
  const auto b = Build(Read(functional), types);
  ASSERT_TRUE(a.ok() && b.ok()) << a.status().message() << b.status().message();
  EXPECT_EQ(HashProgram(a->programs.train_step), HashProgram(b->programs.train_step));
}

}  // namespace
}  // namespace meshtrain::recipe
