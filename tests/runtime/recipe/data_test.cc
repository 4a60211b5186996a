// What `data` of a manifest becomes: the pipelines of training, of evaluation and of predictions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/data/pipeline.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {
namespace {

constexpr std::string_view kImages = R"(
seed: 7
data:
  train: {image_folder: {folder: data/train, color_mode: rgba}, take: 50}
  test: {image_folder: {folder: data/test/}}
  map:
    - random_crop: {size: [6, 8], padding: 2}
    - random_flip: {vertical: true}
    - scale: 0.5
  batch: 4
  cache: false
model: [flatten, dense: {units: 3}]
loss: mse
optimizer: sgd
)";

manifest::Program ImagesProgram() {
  auto manifest = ParseManifest(kImages, "job.yaml");
  EXPECT_TRUE(manifest.ok()) << manifest.status().message();
  return manifest.ok() ? std::move(manifest->program) : manifest::Program{};
}

// The ops of the first stage, which is the map.
const data::MapStage& MapOf(const data::PipelineSpec& spec) {
  return std::get<data::MapStage>(spec.stages.at(0));
}

TEST(DataTest, TrainingIsByChanceThatFollowsFromTheSeed) {
  const data::PipelineSpec train = TrainPipeline(ImagesProgram());
  const auto& folder = std::get<data::ImageFolder>(train.source.from);
  EXPECT_EQ(folder.folder, "data/train");
  EXPECT_EQ(folder.channels, 4);
  EXPECT_EQ(train.source.take, 50);
  const data::MapStage& map = MapOf(train);
  EXPECT_EQ(map.seed, 7u);
  ASSERT_EQ(map.ops.size(), 3u);
  const data::Window window = std::get<data::RandomCrop>(map.ops[0]).window;
  EXPECT_EQ(window.height, 6);
  EXPECT_EQ(window.width, 8);
  EXPECT_EQ(window.padding, 2);
  EXPECT_TRUE(std::get<data::RandomFlip>(map.ops[1]).horizontal);
  EXPECT_TRUE(std::get<data::RandomFlip>(map.ops[1]).vertical);
  // `cache: false` leaves its stage out.
  for (const data::Stage& stage : train.stages) {
    EXPECT_FALSE(std::holds_alternative<data::CacheStage>(stage));
  }
}

TEST(DataTest, EvaluationAndPredictionAreWithoutChance) {
  const manifest::Program program = ImagesProgram();
  EXPECT_EQ(std::get<data::ImageFolder>(TestPipeline(program).source.from).channels, 3);
  for (const data::PipelineSpec& spec :
       {TestPipeline(program), PredictPipeline(program, data::MemoryArrays{})}) {
    const data::MapStage& map = MapOf(spec);
    ASSERT_EQ(map.ops.size(), 2u);
    EXPECT_EQ(std::get<data::CenterCrop>(map.ops[0]).window.padding, 2);
    EXPECT_EQ(std::get<data::Scale>(map.ops[1]).factor, 0.5);
  }
}

TEST(DataTest, TestDataCanLieInAnotherFolder) {
  manifest::Program program = ImagesProgram();
  ASSERT_EQ(MoveTestData("elsewhere", &program), OkStatus());
  const data::PipelineSpec spec = TestPipeline(program);
  EXPECT_EQ(std::get<data::ImageFolder>(spec.source.from).folder, "elsewhere/test");
}

// A program over files of numpy's with more components, in `train` and `test`.
std::string WithMore(const std::string& train, const std::string& test) {
  return "data:\n  train: {npy: {images: d/x.npy, labels: d/y.npy, more: " + train +
         "}}\n  test: {npy: {images: d/a.npy, labels: d/b.npy, more: " + test +
         "}}\n  batch: 4\n"
         "model: {layers: [add: {name: both, inputs: [x, mask]}, dense: {units: 1}]}\n"
         "loss: mse\noptimizer: sgd\n";
}

TEST(DataTest, NumpysFilesMayBeMoreThanTwoComponents) {
  const auto manifest = ParseManifest(WithMore("{mask: d/m.npy}", "{mask: d/c.npy}"), "job.yaml");
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  EXPECT_EQ(manifest::Components(manifest->program), (std::vector<std::string>{"x", "y", "mask"}));
  const auto again = ParseManifest(ToYaml(manifest::WriteProgram(manifest->program)), "job.yaml");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_TRUE(again->program == manifest->program);
  const auto files = std::get<data::NpyFiles>(TrainPipeline(again->program).source.from);
  ASSERT_EQ(files.more.size(), 1u);
  EXPECT_EQ(files.more[0].name, "mask");
  EXPECT_EQ(files.more[0].file, "d/m.npy");
  manifest::Program moved = manifest->program;
  ASSERT_EQ(MoveTestData("elsewhere", &moved), OkStatus());
  const auto test = std::get<data::NpyFiles>(TestPipeline(moved).source.from);
  EXPECT_EQ(test.labels, "elsewhere/b.npy");
  EXPECT_EQ(test.more.at(0).file, "elsewhere/c.npy");

  const auto mistake = [](const std::string& train, const std::string& test) {
    return ParseManifest(WithMore(train, test), "job.yaml").status().message();
  };
  EXPECT_EQ(mistake("{mask: d/m.npy}", "{musk: d/c.npy}"),
            "job.yaml:3:9: program.data.test: expected the components of data.train, x, y, mask, "
            "got: x, y, musk");
  EXPECT_THAT(mistake("{x: d/m.npy, mask: d/m.npy}", "{mask: d/c.npy}"),
              ::testing::HasSubstr("program.data.train.npy.more.x: expected a name of small "
                                   "letters, digits and _ that is not x or y, got: x"));
  EXPECT_THAT(mistake("{mask: ''}", "{mask: d/c.npy}"),
              ::testing::HasSubstr("program.data.train.npy.more.mask: expected a path, got: \"\""));
  EXPECT_THAT(mistake("[d/m.npy]", "{mask: d/c.npy}"),
              ::testing::HasSubstr("more: expected a map from names of components to paths"));
}

TEST(DataTest, NormalizesAllChannelsOrEach) {
  const auto read = [](const std::string& op) {
    std::string text(kImages);
    const std::string was = "scale: 0.5";
    text.replace(text.find(was), was.size(), op);
    const auto manifest = ParseManifest(text, "job.yaml");
    EXPECT_TRUE(manifest.ok()) << manifest.status().message();
    // Written and read again it is the same.
    const auto again = ParseManifest(ToYaml(manifest::WriteProgram(manifest->program)), "job.yaml");
    EXPECT_TRUE(again.ok()) << again.status().message();
    return std::get<data::Normalize>(MapOf(TestPipeline(again->program)).ops.at(1));
  };
  EXPECT_EQ(read("normalize: {mean: 3}").mean, std::vector<double>{3});
  EXPECT_EQ(read("normalize: {mean: 3}").deviation, std::vector<double>{1});
  const data::Normalize each = read("normalize: {mean: [1, 2, 3], deviation: [0.5, 1, 2]}");
  EXPECT_EQ(each.mean, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(each.deviation, (std::vector<double>{0.5, 1, 2}));
}

TEST(DataTest, SaysWhatIsWrongWithAMap) {
  const auto message = [](const std::string& op) {
    std::string text(kImages);
    const std::string was = "random_flip: {vertical: true}";
    text.replace(text.find(was), was.size(), op);
    return ParseManifest(text, "job.yaml").status().message();
  };
  const std::string crop = "expected [height, width], each at least 1, got: ";
  EXPECT_EQ(message("random_flip"), "");
  EXPECT_THAT(message("random_flip: {horizontal: false}"),
              ::testing::HasSubstr("program.data.map[1].random_flip.horizontal: expected true, or "
                                   "`vertical: true` beside it, got: false"));
  EXPECT_THAT(message("random_crop: {size: 3}"), ::testing::HasSubstr(crop + "3"));
  EXPECT_THAT(message("random_crop: {size: [3, 0]}"), ::testing::HasSubstr(crop));
  EXPECT_THAT(message("random_crop: {size: [3, 4, 3]}"), ::testing::HasSubstr(crop));
  EXPECT_THAT(message("random_crop: {size: [3, 4], padding: -1}"),
              ::testing::HasSubstr("padding: expected a whole number of at least 0"));
  EXPECT_THAT(message("random_crop"), ::testing::HasSubstr("size"));
  const std::string mean = "normalize.mean: expected a number, or a list of them, got: ";
  EXPECT_THAT(message("normalize: {mean: grey}"), ::testing::HasSubstr(mean));
  EXPECT_THAT(message("normalize: {mean: []}"), ::testing::HasSubstr(mean));
  EXPECT_THAT(message("normalize: {deviation: [1, 0, 2]}"),
              ::testing::HasSubstr("normalize.deviation: expected a number above 0, got: 0"));
}

// kImages with `was` replaced.
std::string With(std::string_view was, std::string_view now) {
  std::string text(kImages);
  const size_t at = text.find(was);
  EXPECT_NE(at, std::string::npos) << was;
  return text.replace(at, was.size(), now);
}

std::string Mistakes(const std::string& text) {
  return ParseManifest(text, "job.yaml").status().message();
}

TEST(DataTest, AnOpThatDoesNotFitTheDataIsTheManifestsMistake) {
  const auto mistake = [](const std::string& text, bool training) {
    const auto manifest = ParseManifest(text, "job.yaml");
    EXPECT_TRUE(manifest.ok()) << manifest.status().message();
    data::PipelineSpec spec =
        training ? TrainPipeline(manifest->program) : TestPipeline(manifest->program);
    spec.source = {.from = data::MemoryArrays{{mesh::Tensor({mesh::DType::kU8, {9, 4, 4}})}}};
    const Status status = data::Pipeline::Create(std::move(spec)).status();
    EXPECT_EQ(status.origin(), Origin::kManifest);
    return status.message();
  };
  for (const bool training : {true, false}) {
    EXPECT_EQ(mistake(With("[6, 8], padding: 2", "[5, 5]"), training),
              "job.yaml:7:7: program.data.map[0].random_crop: expected a size of at most [4, 4], "
              "of images u8[4,4], got: [5, 5]");
    // The crop is of 6 by 8; the flip before it is left out where nothing is random.
    EXPECT_EQ(mistake(With("scale: 0.5", "normalize: {mean: [0, 1], deviation: [1]}"), training),
              "job.yaml:9:7: program.data.map[2].normalize: expected one mean, or one for each "
              "channel (8), got: 2");
  }
}

TEST(DataTest, PassesAndBatchesAheadHaveBounds) {
  const auto with = [](const std::string& field) {
    return With("cache: false", "cache: false\n  " + field);
  };
  for (const char* good :
       {"prefetch: 1024", "prefetch: 0", "prefetch: auto", "repeat: 1000000000", "repeat: false"}) {
    EXPECT_EQ(Mistakes(with(good)), "") << good;
  }
  EXPECT_EQ(Mistakes(with("prefetch: 5000")),
            "job.yaml:12:13: program.data.prefetch: expected auto, or a whole number of at least 0 "
            "and of at most 1024, got: 5000");
  EXPECT_EQ(Mistakes(with("repeat: 9223372036854775807")),
            "job.yaml:12:11: program.data.repeat: expected true (for ever), false, or a whole "
            "number of at least 1 and of at most 1000000000, got: 9223372036854775807");
}

// All features would be 0.
TEST(DataTest, AFactorIsNotZero) {
  EXPECT_THAT(
      Mistakes(With("scale: 0.5", "scale: 0")),
      ::testing::HasSubstr("program.data.map[2].scale: expected a number that is not 0, got: 0"));
  EXPECT_EQ(Mistakes(With("scale: 0.5", "scale: -0.5")), "");
}

// kImages with a text to train on.
std::string WithText(const std::string& options) {
  std::string text = With("image_folder: {folder: data/train, color_mode: rgba}",
                          "text: {file: t.txt, length: 8" + options + "}");
  const std::string_view cache = "  cache: false\n";
  return text.erase(text.find(cache), cache.size());
}

TEST(DataTest, APartOfATextIsOfATextThatIsCut) {
  EXPECT_EQ(Mistakes(WithText(", subset: validation")),
            "job.yaml:4:50: program.data.train.text.subset: expected a validation_split above 0 "
            "beside it, got: none");
  EXPECT_EQ(Mistakes(WithText(", subset: training, validation_split: 0")),
            "job.yaml:4:50: program.data.train.text.subset: expected a validation_split above 0 "
            "beside it, got: 0");
  EXPECT_EQ(Mistakes(WithText(", subset: validation, validation_split: 2")),
            "job.yaml:4:80: program.data.train.text.validation_split: expected a number of at "
            "least 0 and below 1, got: 2");
}

TEST(DataTest, ACharacterHasOneNumber) {
  EXPECT_EQ(Mistakes(WithText(", alphabet: abcb")),
            "job.yaml:4:52: program.data.train.text.alphabet: expected each character once, got: "
            "`b` again at byte 3");
  EXPECT_EQ(Mistakes(WithText(", alphabet: ''")),
            "job.yaml:4:52: program.data.train.text.alphabet: expected at least one character, "
            "got: \"\"");
}

TEST(DataTest, APathIsNotEmpty) {
  EXPECT_EQ(Mistakes(With("folder: data/train,", "folder: '',")),
            "job.yaml:4:34: program.data.train.image_folder.folder: expected a path, got: \"\"");
  EXPECT_EQ(Mistakes(With("loss: mse", "loss: mse\ninitial_weights: ''")),
            "job.yaml:14:18: program.initial_weights: expected a path, got: \"\"");
  const std::string file = WithText("");
  for (const auto& [was, now] :
       {std::pair{"text: {file: t.txt", "text: {file: \"\""},
        {"text: {file: t.txt, length: 8}", "idx: {images: '', labels: b}"},
        {"text: {file: t.txt, length: 8}", "npy: {images: a, labels: ''}"}}) {
    std::string text = file;
    const std::string from = was;
    EXPECT_THAT(Mistakes(text.replace(text.find(from), from.size(), now)),
                ::testing::HasSubstr(": expected a path, got: \"\""))
        << now;
  }
}

// kImages with two texts of these options, one of t.txt; the mistake without its place.
std::string MistakeOfTexts(const std::string& train, const std::string& test,
                           const std::string& tested = "./t.txt", bool takes = false) {
  std::string text = WithText(train);
  const std::string take = ", take: 50";
  if (!takes) text.erase(text.find(take), take.size());
  const std::string was = "image_folder: {folder: data/test/}";
  text.replace(text.find(was), was.size(), "text: {file: " + tested + ", length: 8" + test + "}");
  const std::string mistake = Mistakes(text);
  return mistake.substr(std::min(mistake.size(), mistake.find("program.")));
}

TEST(DataTest, ANumberIsOneCharacterInTrainingAndEvaluation) {
  EXPECT_EQ(MistakeOfTexts(", alphabet: abc", ", alphabet: abc"), "");
  const std::string expected = "program.data.test.text.alphabet: expected that of data.train, ";
  EXPECT_EQ(MistakeOfTexts(", alphabet: abc", ", alphabet: acb"),
            expected + "of which number 1 is `b`, got: `c`");
  EXPECT_EQ(MistakeOfTexts(", alphabet: abc", ", alphabet: ab"),
            expected + "of which number 2 is `c`, got: none");
  EXPECT_EQ(MistakeOfTexts(", alphabet: abc", ""), expected + "`abc`, got: none");
  EXPECT_EQ(MistakeOfTexts("", ", alphabet: abc"), expected + "none, got: `abc`");
}

TEST(DataTest, WhatIsEvaluatedOfATextIsNotWhatIsTrainedOn) {
  const std::string training = ", validation_split: 0.2",
                    validation = training + ", subset: validation";
  EXPECT_EQ(MistakeOfTexts(training, validation), "");
  EXPECT_EQ(MistakeOfTexts(validation, training + ", subset: training"), "");
  // Nothing is kept apart, or it is of another text.
  EXPECT_EQ(MistakeOfTexts("", ""), "");
  EXPECT_EQ(MistakeOfTexts("", validation, "u.txt"), "");
  // How far the first windows reach, the text's length says.
  EXPECT_EQ(MistakeOfTexts("", validation, "./t.txt", /*takes=*/true), "");
  const std::string expected =
      "program.data.test.text: expected the part of this file that data.train leaves, of the same "
      "validation_split, got: ";
  EXPECT_EQ(MistakeOfTexts("", validation),
            expected + "the subset validation of validation_split 0.2 (data.train: all of it)");
  EXPECT_EQ(MistakeOfTexts(training, ""),
            expected + "all of it (data.train: the subset training of validation_split 0.2)");
  EXPECT_EQ(MistakeOfTexts(training, training),
            expected +
                "the subset training of validation_split 0.2 (data.train: the subset "
                "training of validation_split 0.2)");
  EXPECT_EQ(
      MistakeOfTexts(", validation_split: 0.1", ", validation_split: 0.3, subset: validation"),
      expected +
          "the subset validation of validation_split 0.3 (data.train: the subset "
          "training of validation_split 0.1)");
}

TEST(DataTest, WhatCannotBeDoneWithoutACacheSaysSo) {
  std::string text(kImages);
  const std::string was = "{image_folder: {folder: data/test/}}";
  text.replace(text.find(was), was.size(), "{npy: {images: x.npy, labels: y.npy}}");
  EXPECT_THAT(ParseManifest(text, "job.yaml").status().message(),
              ::testing::HasSubstr("program.data.cache: expected true (of the sources that there "
                                   "are image_folder alone can do without), got: false"));
}

}  // namespace
}  // namespace meshtrain::recipe
