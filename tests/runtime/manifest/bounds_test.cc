// Numbers of the manifest have bounds: what lies outside means nothing, or something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/manifest.h"

namespace meshtrain::manifest {
namespace {

// Of which any number means something.
constexpr std::string_view kAnyNumber[] = {"scale", "mean", "value", "minval", "maxval"};

bool IsNumber(const Field& field) {
  return field.type == FieldType::kNumber || field.type == FieldType::kNumbers ||
         field.type == FieldType::kNumberOrNumbers || field.type == FieldType::kNumberOrChoice;
}

void CheckBounds(const std::vector<Field>& fields, const std::string& of) {
  for (const Field& field : fields) {
    CheckBounds(field.fields, of + "." + std::string(field.name));
    if (!IsNumber(field)) continue;
    const bool any =
        std::find(std::begin(kAnyNumber), std::end(kAnyNumber), field.name) != std::end(kAnyNumber);
    EXPECT_EQ(field.bounds.Hold(-1e9), any) << of << "." << field.name;
  }
}

TEST(BoundsTest, EveryNumberThatCanBeChosenHasThem) {
  for (const Catalogue* catalogue :
       {&Layers(), &Initializers(), &Optimizers(), &Schedules(), &Losses(), &Metrics(), &Sources(),
        &MapOps(), &Partitioners()}) {
    for (const Entry& entry : catalogue->entries) {
      if (entry.name == "ftrl") continue;  // its learning_rate_power is at most 0
      CheckBounds(entry.options, std::string(entry.name));
    }
  }
}

// The mistakes of a program with these fields, on line 6.
std::string Mistakes(const std::string& model, const std::string& optimizer) {
  const std::string text =
      "program:\n"
      "  data: {train: {idx: {images: a, labels: b}}, batch: 8}\n"
      "  loss: mse\n"
      "  train: {epochs: 3}\n"
      "  # below\n"
      "  " +
      (model.empty() ? "model: [flatten]" : model) + "\n  " +
      (optimizer.empty() ? "optimizer: sgd" : optimizer) + "\n";
  Problems problems("job.yaml");
  const auto read = Read(text, {}, problems);
  EXPECT_TRUE(read.ok() && read->has_value()) << text;
  return problems.ToStatus().message();
}

std::string OfOptimizer(const std::string& kind, const std::string& option) {
  return Mistakes("", "optimizer: {" + kind + ": {" + option + "}}");
}
std::string OfDense(const std::string& option) {
  return Mistakes("model: [dense: {units: 3, " + option + "}]", "");
}

TEST(BoundsTest, NoClipTurnsAGradientAroundOrMakesItNothing) {
  for (const std::string clip : {"clipnorm", "global_clipnorm", "clipvalue"}) {
    for (const std::string number : {"-1", "0"}) {
      const int column = 23 + static_cast<int>(clip.size());
      EXPECT_EQ(OfOptimizer("sgd", clip + ": " + number),
                "job.yaml:7:" + std::to_string(column) + ": program.optimizer.sgd." + clip +
                    ": expected a number above 0, got: " + number);
    }
    EXPECT_EQ(OfOptimizer("sgd", clip + ": 0.5"), "");
  }
}

TEST(BoundsTest, OptimizersTakeNoNumbersBelowZero) {
  const std::pair<const char*, const char*> options[] = {
      {"adam", "weight_decay"},
      {"adam", "epsilon"},
      {"rmsprop", "epsilon"},
      {"adagrad", "initial_accumulator_value"},
      {"ftrl", "initial_accumulator_value"},
      {"ftrl", "l1_regularization_strength"},
      {"ftrl", "l2_regularization_strength"},
      {"ftrl", "l2_shrinkage_regularization_strength"},
      {"ftrl", "beta"},
  };
  for (const auto& [kind, option] : options) {
    EXPECT_THAT(OfOptimizer(kind, std::string(option) + ": -1"),
                ::testing::EndsWith("." + std::string(option) +
                                    ": expected a number of at least 0, got: -1"));
    EXPECT_EQ(OfOptimizer(kind, std::string(option) + ": 0"), "");
  }
  for (const char* kind : {"sgd", "rmsprop"}) {
    for (const char* momentum : {"-0.5", "1.5"}) {
      EXPECT_THAT(OfOptimizer(kind, "momentum: " + std::string(momentum)),
                  ::testing::EndsWith(".momentum: expected a number of at least 0 and of at most "
                                      "1, got: " +
                                      std::string(momentum)));
    }
  }
}

TEST(BoundsTest, RegularizersAndDeviationsAreNotBelowZero) {
  EXPECT_EQ(OfDense("kernel_regularizer: {l2: -1}"),
            "job.yaml:6:54: program.model[0].dense.kernel_regularizer.l2: expected a number of at "
            "least 0, got: -1");
  EXPECT_THAT(OfDense("bias_regularizer: {l1: -1}"),
              ::testing::EndsWith(".l1: expected a number of at least 0, got: -1"));
  for (const std::string kind : {"random_normal", "truncated_normal"}) {
    EXPECT_THAT(OfDense("kernel_initializer: {" + kind + ": {stddev: -1}}"),
                ::testing::EndsWith(kind + ".stddev: expected a number of at least 0, got: -1"));
  }
}

TEST(BoundsTest, AUniformInitializerGoesUpwards) {
  const auto of = [](const std::string& options) {
    return OfDense("kernel_initializer: {random_uniform: {" + options + "}}");
  };
  EXPECT_EQ(of("minval: -3, maxval: -2"), "");
  EXPECT_EQ(of("minval: 0.05"), "");
  EXPECT_THAT(of("minval: 2, maxval: 1"),
              ::testing::EndsWith(".maxval: expected a number of at least minval, 2, got: 1"));
  EXPECT_THAT(of("minval: 2"),
              ::testing::EndsWith(".minval: expected a number of at most maxval, 0.05, got: 2"));
  EXPECT_THAT(of("maxval: -2"),
              ::testing::EndsWith(".maxval: expected a number of at least minval, -0.05, got: -2"));
  EXPECT_THAT(of("minval: 2, maxval: much"),
              ::testing::EndsWith(".maxval: expected a number, got: much"));
}

}  // namespace
}  // namespace meshtrain::manifest
