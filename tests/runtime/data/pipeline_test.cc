#include "runtime/data/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/data/cursor.h"
#include "tests/runtime/data/idx_files.h"

namespace meshtrain::data {
namespace {

using mesh::Tensor;
using ::testing::HasSubstr;

// Element i is the number i.
SourceSpec Numbers(int64_t n) {
  Tensor x(mesh::TensorType{mesh::DType::kI64, {n}});
  for (int64_t i = 0; i < n; ++i) x.mutable_values<int64_t>()[i] = i;
  return {.from = MemoryArrays{{x}}};
}

std::unique_ptr<Pipeline> Make(SourceSpec source, std::vector<Stage> stages) {
  auto pipeline = Pipeline::Create({.source = std::move(source), .stages = std::move(stages)});
  EXPECT_TRUE(pipeline.ok()) << pipeline.status().ToString();
  return std::move(*pipeline);
}

using Ints = std::vector<int64_t>;

// The next `n` answers; an empty list is the end of a pass.
std::vector<Ints> Take(Pipeline& pipeline, int n) {
  std::vector<Ints> out;
  for (int i = 0; i < n; ++i) {
    auto batch = pipeline.Next();
    EXPECT_TRUE(batch.ok()) << batch.status().ToString();
    out.emplace_back();
    if (!batch->has_value()) continue;
    const auto values = (*batch)->components[0].values<int64_t>();
    out.back().assign(values.begin(), values.end());
    EXPECT_EQ((*batch)->size, static_cast<int64_t>(values.size()));
  }
  return out;
}

TEST(PipelineTest, EndsEachPassOnceAndBeginsTheNext) {
  auto pipeline = Make(Numbers(5), {BatchStage{2}});
  EXPECT_EQ(pipeline->steps_per_epoch(), 3);
  EXPECT_EQ(Take(*pipeline, 5), (std::vector<Ints>{{0, 1}, {2, 3}, {4}, {}, {0, 1}}));
  EXPECT_EQ(pipeline->cursor().epoch, 1);
  EXPECT_EQ(pipeline->cursor().batch, 1);
}

TEST(PipelineTest, ComponentsHaveNamesOneOfThemTheLabels) {
  const Tensor left(mesh::TensorType{mesh::DType::kF32, {3, 2}});
  const auto ids = Tensor::Of<int32_t>({3}, std::vector<int32_t>{0, 1, 2});
  auto pipeline = Pipeline::Create(
      {.source = {MemoryArrays{.components = {ids, left, ids}, .names = {"kind", "left", "right"}}},
       .stages = {BatchStage{3}},
       .labels = "kind"});
  ASSERT_TRUE(pipeline.ok()) << pipeline.status().ToString();
  EXPECT_EQ((*pipeline)->component_names(), (std::vector<std::string>{"kind", "left", "right"}));
  const auto batch = (*pipeline)->Next();
  ASSERT_TRUE(batch.ok() && batch->has_value());
  EXPECT_EQ((**batch)["left"].type(), left.type());
  EXPECT_EQ((**batch)["kind"].values<int32_t>()[2], 2);
  EXPECT_DEATH((**batch)["lefd"], "");
  // What labels must be is asked of the components that hold them.
  (*pipeline)->ExpectClasses({{"kind", 2}, {"right", 3}});
  ASSERT_TRUE((*pipeline)->Next().ok());  // the end of the pass
  EXPECT_THAT((*pipeline)->Next().status().message(),
              ::testing::HasSubstr("label 2, but 2 classes"));
  pipeline = Pipeline::Create(
      {.source = {MemoryArrays{.components = {ids, left, ids}, .names = {"kind", "left", "right"}}},
       .stages = {BatchStage{3}},
       .classes = {{"kind", 3}, {"right", 1}}});
  EXPECT_THAT((*pipeline)->Next().status().message(),
              ::testing::HasSubstr("label 1, but 1 classes"));
  // Without names; and names that cannot be told apart.
  auto unnamed = Make({MemoryArrays{{left, ids, ids}}}, {BatchStage{3}});
  EXPECT_EQ(unnamed->component_names(), (std::vector<std::string>{"x", "y", "component_2"}));
  const auto twice =
      Pipeline::Create({.source = {MemoryArrays{.components = {ids, left}, .names = {"a", "a"}}},
                        .stages = {BatchStage{3}}});
  EXPECT_EQ(twice.status().message(),
            "data: expected one name for each of 2 components, got: `a` twice");
  const auto few =
      Pipeline::Create({.source = {MemoryArrays{.components = {ids, left}, .names = {"a"}}},
                        .stages = {BatchStage{3}}});
  EXPECT_EQ(few.status().message(),
            "data: arrays: expected a name for each of 2 components, got: 1");
}

TEST(PipelineTest, StagesActInDeclaredOrder) {
  // Shuffling batches keeps their members together; batching what was shuffled does not.
  auto batches = Make(Numbers(40), {BatchStage{4}, ShuffleStage{.buffer = 100, .seed = 1}});
  for (const Ints& b : Take(*batches, 10)) EXPECT_EQ(b[3], b[0] + 3);
  auto elements = Make(Numbers(40), {ShuffleStage{.buffer = 100, .seed = 1}, BatchStage{4}});
  int together = 0;
  for (const Ints& b : Take(*elements, 10)) together += b[3] == b[0] + 3;
  EXPECT_LT(together, 3);
  // Repeat before batch lets a batch span passes.
  auto spanning = Make(Numbers(3), {RepeatStage{2}, BatchStage{2}});
  EXPECT_EQ(spanning->steps_per_epoch(), 3);
  EXPECT_EQ(Take(*spanning, 4), (std::vector<Ints>{{0, 1}, {2, 0}, {1, 2}, {}}));
  auto apart = Make(Numbers(3), {BatchStage{2}, RepeatStage{2}});
  EXPECT_EQ(apart->steps_per_epoch(), 4);
  EXPECT_EQ(Take(*apart, 5), (std::vector<Ints>{{0, 1}, {2}, {0, 1}, {2}, {}}));
}

TEST(PipelineTest, KnowsItsBatchSizes) {
  const auto last = [](std::vector<Stage> stages) {
    return Make(Numbers(5), std::move(stages))->last_batch_size();
  };
  EXPECT_EQ(last({BatchStage{2}}), 1);
  EXPECT_EQ(last({BatchStage{2, true}}), 2);
  EXPECT_EQ(last({BatchStage{5}}), 5);
  EXPECT_EQ(last({BatchStage{8}}), 5);
  EXPECT_EQ(last({RepeatStage{2}, BatchStage{3}}), 1);
  EXPECT_EQ(last({RepeatStage{}, BatchStage{3}}), 3);
  EXPECT_TRUE(Make(Numbers(5), {RepeatStage{}, BatchStage{3}})->endless());
  EXPECT_FALSE(Make(Numbers(5), {RepeatStage{2}, BatchStage{3}})->endless());
  const auto all = [](int64_t batch) {
    return Make(Numbers(5), {BatchStage{batch}})->batch_sizes();
  };
  EXPECT_EQ(all(2), (std::set<int64_t>{1, 2}));
  EXPECT_EQ(all(8), (std::set<int64_t>{5}));
  EXPECT_EQ(all(5), (std::set<int64_t>{5}));
}

TEST(PipelineTest, RepeatForEverHasNoEnd) {
  auto pipeline = Make(Numbers(3), {BatchStage{3}, RepeatStage{}});
  EXPECT_EQ(pipeline->steps_per_epoch(), 1);
  for (const Ints& b : Take(*pipeline, 50)) EXPECT_EQ(b, (Ints{0, 1, 2}));
}

std::vector<Stage> Shuffling(bool prefetch) {
  std::vector<Stage> stages = {ShuffleStage{.buffer = 7, .seed = 11}, BatchStage{4}};
  if (prefetch) stages.push_back(PrefetchStage{3});
  return stages;
}

TEST(PipelineTest, PrefetchChangesNothing) {
  auto plain = Make(Numbers(21), Shuffling(false));
  auto ahead = Make(Numbers(21), Shuffling(true));
  ahead->Start();
  EXPECT_EQ(Take(*plain, 30), Take(*ahead, 30));
  EXPECT_EQ(plain->cursor(), ahead->cursor());
}

TEST(PipelineTest, ARestoredCursorGivesTheSameContinuation) {
  for (const bool prefetch : {false, true}) {
    auto straight = Make(Numbers(21), Shuffling(prefetch));
    const std::vector<Ints> all = Take(*straight, 20);
    for (const int at : {0, 1, 5, 6, 7, 13, 19}) {
      auto first = Make(Numbers(21), Shuffling(prefetch));
      Take(*first, at);
      const auto cursor = Cursor::Parse(first->cursor().ToString());
      ASSERT_TRUE(cursor.ok());
      auto second = Make(Numbers(21), Shuffling(prefetch));
      Take(*second, 3);  // whatever it did before
      ASSERT_EQ(second->Restore(*cursor), OkStatus());
      EXPECT_EQ(Take(*second, 20 - at), std::vector<Ints>(all.begin() + at, all.end())) << at;
    }
  }
}

TEST(PipelineTest, RefusesForeignCursors) {
  auto pipeline = Make(Numbers(21), Shuffling(true));
  auto other = Make(Numbers(22), Shuffling(true));
  EXPECT_EQ(pipeline->Restore(other->cursor()).code(), StatusCode::kFailedPrecondition);
  Cursor far = pipeline->cursor();
  far.batch = 7;
  EXPECT_EQ(pipeline->Restore(far).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Take(*pipeline, 7).back(), Ints{});  // still usable, from the beginning
  for (const char* text : {"", "epoch=1", "epoch=x batch=0 order=0", "epoch=-1 batch=0 order=0",
                           "epoch=1 batch=0 order=zz", "epoch=1 batch=0 order=0 "}) {
    EXPECT_EQ(Cursor::Parse(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

TEST(PipelineTest, ReadsImagesAndLabels) {
  const TempFolder folder;
  const IdxFiles files{folder.Write("i.gz", Gzip(Images(10))),
                       folder.Write("l.gz", Gzip(Labels(10)))};
  auto pipeline = Make({.from = files, .take = 7}, {MapStage{{Scale{1.0 / 255}}}, CacheStage{},
                                                    BatchStage{3}, PrefetchStage{}});
  EXPECT_EQ(pipeline->steps_per_epoch(), 3);
  EXPECT_EQ(pipeline->BatchTypes(3)[0].ToString(), "f32[3,2,3]");
  EXPECT_EQ(pipeline->BatchTypes(1)[1].ToString(), "i32[1]");
  for (int pass = 0; pass < 2; ++pass) {
    for (int step = 0; step < 3; ++step) {
      auto batch = pipeline->Next();
      ASSERT_TRUE(batch.ok() && batch->has_value());
      const auto images = (*batch)->components[0].values<float>();
      const auto labels = (*batch)->components[1].values<int32_t>();
      ASSERT_EQ(labels.size(), step < 2 ? 3u : 1u);
      for (size_t i = 0; i < labels.size(); ++i) {
        EXPECT_EQ(labels[i], step * 3 + static_cast<int>(i));
        EXPECT_EQ(images[i * 6 + 5], static_cast<float>(labels[i] * 7 + 5) / 255.0f);
      }
    }
    EXPECT_FALSE(pipeline->Next()->has_value());
  }
}

TEST(PipelineTest, ADamagedFileIsAnErrorThatStays) {
  const TempFolder folder;
  std::string broken = Gzip(Images(5000));
  broken.resize(broken.size() - 50);
  const IdxFiles files{folder.Write("i.gz", broken), folder.Write("l.gz", Gzip(Labels(5000)))};
  for (const bool prefetch : {false, true}) {
    std::vector<Stage> stages = {BatchStage{100}};
    if (prefetch) stages.push_back(PrefetchStage{2});
    auto pipeline = Make({.from = files}, stages);
    Status error;
    while (error.ok()) error = pipeline->Next().status();
    EXPECT_EQ(error.code(), StatusCode::kDataLoss);
    EXPECT_THAT(error.message(), HasSubstr(files.images));
    EXPECT_EQ(pipeline->Next().status(), error);
    EXPECT_GT(pipeline->cursor().batch, 10);  // the sound part was served
  }
}

TEST(PipelineTest, LabelsKeepTheirFilesType) {
  const TempFolder folder;
  const std::vector<float> values = {0.5f, -1.25f, 3e9f};
  const IdxFiles files{folder.Write("i", Images(3)), folder.Write("l", FloatLabels(values))};
  auto pipeline = Make({.from = files}, {BatchStage{3}});
  EXPECT_EQ(pipeline->BatchTypes(3)[1].ToString(), "f32[3]");
  const auto batch = pipeline->Next();
  ASSERT_TRUE(batch.ok() && batch->has_value());
  const auto labels = (*batch)->components[1].values<float>();
  EXPECT_EQ(std::vector<float>(labels.begin(), labels.end()), values);
}

TEST(PipelineTest, ALabelThatItsTypeWouldCutIsAnErrorThatStays) {
  const TempFolder folder;
  const IdxFiles whole{folder.Write("i", Images(4)), folder.Write("w", FloatLabels({3, 1, 0, 2})),
                       mesh::DType::kI32};
  auto kept = Make({.from = whole}, {BatchStage{4}});
  const auto batch = kept->Next();
  ASSERT_TRUE(batch.ok() && batch->has_value());
  EXPECT_EQ((*batch)->components[1].values<int32_t>()[0], 3);

  const IdxFiles cut{whole.images, folder.Write("c", FloatLabels({3, 1, 0.75f, 2})),
                     mesh::DType::kI32};
  for (const bool prefetch : {false, true}) {
    std::vector<Stage> stages = {BatchStage{2}};
    if (prefetch) stages.push_back(PrefetchStage{2});
    auto pipeline = Make({.from = cut}, stages);
    ASSERT_TRUE(pipeline->Next().ok());
    const Status want =
        InvalidArgument(cut.labels + ": example 2: label 0.75, which labels_as: i32 would cut");
    EXPECT_EQ(pipeline->Next().status(), want);
    EXPECT_EQ(pipeline->Next().status(), want);
  }
}

TEST(PipelineTest, ALabelOutsideTheClassesIsNamedByItsPlaceInTheFile) {
  const TempFolder folder;
  const std::string labels = IdxHeader({30}) + std::string(23, '\1') + '\5' + std::string(6, '\0');
  const IdxFiles files{folder.Write("i.gz", Gzip(Images(30))), folder.Write("l.gz", Gzip(labels))};
  for (const bool prefetch : {false, true}) {
    std::vector<Stage> stages = {ShuffleStage{.buffer = 30, .seed = 4}, BatchStage{4}};
    if (prefetch) stages.push_back(PrefetchStage{8});
    auto pipeline = Make({.from = files}, stages);
    pipeline->Start();
    pipeline->ExpectClasses({{"y", 6}});
    for (int i = 0; i < 9; ++i) ASSERT_TRUE(pipeline->Next().ok());  // a pass, and its end
    // What is expected holds for batches that were made before, too.
    pipeline->ExpectClasses({{"y", 5}});
    Status error;
    int given = 0;
    while (error.ok() && given++ < 8) error = pipeline->Next().status();
    EXPECT_EQ(error, InvalidArgument(files.labels + ": example 23: label 5, but 5 classes"));
    EXPECT_EQ(pipeline->Next().status(), error);
    EXPECT_EQ(pipeline->cursor().batch, given - 1);
  }
  // Ids likewise, of the rows of a table.
  auto ids = Make({.from = files}, {BatchStage{30}});
  ids->ExpectIds({{"y", 6}});
  ASSERT_TRUE(ids->Next().ok());
  ids = Make({.from = files}, {BatchStage{30}});
  ids->ExpectIds({{"y", 5}});
  EXPECT_EQ(ids->Next().status(),
            InvalidArgument(files.labels + ", component `y`: example 23: id 5, but 5 rows"));
  // A spec may say it, and arrays may say where they come from. Of a part, the whole's numbers
  // count.
  const std::vector<int32_t> numbers = {0, 0, 0, 0, 0, 0, 0, 0, 7};
  PipelineSpec spec{.source = {.from = MemoryArrays{{mesh::Tensor::Of<int32_t>({9}, numbers),
                                                     mesh::Tensor::Of<int32_t>({9}, numbers)},
                                                    "part"},
                               .first = 5,
                               .every = 3},
                    .stages = {BatchStage{2}},
                    .classes = {{"y", 7}}};
  EXPECT_EQ(Pipeline::Create(spec).value()->Next().status(),
            InvalidArgument("part: example 8: label 7, but 7 classes"));
}

// Asked of the batch that was given last, whoever uses which part of it; nothing is lost by it.
TEST(PipelineTest, NumbersThatAreNotFiniteAreNamedWhenAsked) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Tensor x(mesh::TensorType{mesh::DType::kF32, {12, 2}});
  Tensor y(mesh::TensorType{mesh::DType::kF64, {12}});
  for (int i = 0; i < 24; ++i) x.mutable_values<float>()[i] = static_cast<float>(i);
  for (int i = 0; i < 12; ++i) y.mutable_values<double>()[i] = i;
  x.mutable_values<float>()[2 * 7 + 1] = -kInf;
  y.mutable_values<double>()[10] = std::nan("");
  for (const bool ahead : {false, true}) {
    std::vector<Stage> stages = {BatchStage{4}};
    if (ahead) stages.emplace_back(PrefetchStage{2});
    auto pipeline = Make({.from = MemoryArrays{{x, y}, "numbers"}}, stages);
    EXPECT_EQ(pipeline->CheckFinite(), OkStatus());  // nothing was given
    pipeline->UseOnly([](int64_t) { return std::pair<int64_t, int64_t>(0, 1); });
    const Status want[] = {
        OkStatus(),
        InvalidArgument("numbers, component `x`: example 7: expected finite numbers, got: -inf"),
        InvalidArgument("numbers, component `y`: example 10: expected finite numbers, got: nan")};
    for (int batch = 0; batch < 3; ++batch) {
      auto next = pipeline->Next();
      ASSERT_TRUE(next.ok() && next->has_value());
      EXPECT_EQ((**next).elements, (Ints{4 * batch, 4 * batch + 1, 4 * batch + 2, 4 * batch + 3}));
      EXPECT_EQ(pipeline->CheckFinite(), want[batch]);
      if (batch > 0) {
        EXPECT_EQ(pipeline->CheckFinite().origin(), Origin::kInput);
      }
    }
    // Of a batch that was given before, and nothing is lost by that either.
    EXPECT_EQ(pipeline->CheckFinite(Ints{4, 5, 6, 7}), want[1]);
    EXPECT_EQ(pipeline->CheckFinite(Ints{0, 3}), OkStatus());
    auto end = pipeline->Next();
    EXPECT_TRUE(end.ok() && !end->has_value());
  }
}

TEST(PipelineTest, AWaitEndsWhenAsked) {
  auto pipeline = Make(Numbers(4), {BatchStage{2}, PrefetchStage{1}});
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(pipeline->Next(stop.get_token()).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(Take(*pipeline, 1)[0], (Ints{0, 1}));
}

TEST(PipelineTest, SaysWhichStageMakesNoSense) {
  struct Case {
    std::vector<Stage> stages;
    std::string says;
  };
  for (const Case& c : std::vector<Case>{
           {{}, "data: expected a batch size, got: none"},
           {{BatchStage{0}}, "data: stage 1: batch: expected a size of at least 1, got: 0"},
           {{BatchStage{2}, BatchStage{2}},
            "data: stage 2: batch: expected one batch stage, got: a second"},
           {{ShuffleStage{.buffer = 0}, BatchStage{2}},
            "data: stage 1: shuffle: expected a buffer of at least 1, got: 0"},
           {{BatchStage{9, true}}, "data: stage 1: batch: expected at least one full batch of 9"},
           {{RepeatStage{0}, BatchStage{2}}, "data: stage 1: repeat: expected a count"},
           {{MapStage{{Scale{2}}, 1}, BatchStage{2}},
            "data: stage 1: map: expected a component below 1, got: 1"},
           {{MapStage{{Scale{2}, RandomFlip{}}}, BatchStage{2}},
            "map: random_flip: expected images [height, width]"},
           {{BatchStage{2}, PrefetchStage{0}}, "data: stage 2: prefetch: expected 1 to 1024"},
       }) {
    const Status status = Pipeline::Create({.source = Numbers(5), .stages = c.stages}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.origin(), Origin::kInput);
    EXPECT_THAT(status.message(), HasSubstr(c.says));
  }
}

TEST(PipelineTest, AnOpThatDoesNotFitIsTheManifestsWhereItSaysItsPlace) {
  const auto mistake = [](MapOp op) {
    const MapStage map{.ops = {Scale{2}, std::move(op)}, .places = {"m.yaml:1:2: one", "two"}};
    const Status status =
        Pipeline::Create({.source = Numbers(5), .stages = {map, BatchStage{2}}}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.origin(), Origin::kManifest);
    return status.message();
  };
  EXPECT_EQ(mistake(Normalize{.mean = {0, 1}, .deviation = {1}}),
            "two: expected one mean, or one for each channel (1), got: 2");
  EXPECT_EQ(mistake(RandomCrop{{5, 5}}),
            "two: expected images [height, width] or [height, width, channels], got: f32[]");
}

}  // namespace
}  // namespace meshtrain::data
