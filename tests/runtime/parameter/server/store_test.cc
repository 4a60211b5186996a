// What a store makes of definitions, pushes and writes while it lives.
#include "runtime/parameter/server/store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "tests/runtime/parameter/server/store_opening.h"
#include "tests/runtime/parameter/server/store_testing.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::parameter {
namespace {

using namespace testing_store;  // NOLINT: the test's own words
using testing_folder::TempFolder;
namespace fs = std::filesystem;

TEST(StoreTest, APushChangesWhatWorkersRead) {
  const auto store = OpenStore();
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  const std::shared_ptr<const StoreVersion> before = store->newest();
  ASSERT_EQ(before->values.size(), 3u);  // w/part_0, w/part_1, n; no slots
  const Push pushes[] = {SamplePush(1, {0, 1, 0}, 1.0f), SamplePush(1, {1, 1, 0}, 1.0f)};
  const auto results = store->Apply(pushes);
  EXPECT_EQ(results[0]->version, 1);
  EXPECT_EQ(results[1]->version, 2);
  const std::shared_ptr<const StoreVersion> after = store->newest();
  EXPECT_EQ(after->version, 2);
  EXPECT_EQ(after->values.at("n").Item(), 2);
  // Adam's first step is of the learning rate's length, whatever the gradient's.
  const float was = before->values.at("w/part_1").values<float>()[3];
  EXPECT_NEAR(after->values.at("w/part_1").values<float>()[3], was - 0.02f, 1e-5f);
  EXPECT_EQ(before->values.at("n").Item(), 0) << "a version stays as it was";
}

TEST(StoreTest, ShardsBeginAsRowsOfTheWhole) {
  const auto store = OpenStore();
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  const auto cut_rows = store->newest()->values;
  // The same job, not cut.
  Planner planner(Whole{}, 1, 7);
  const std::vector<Parameter> variables = {
      Parameter("w", TensorType{DType::kF32, {5, 2}}, nn::Initializer::Uniform(-1, 1))};
  ASSERT_TRUE(store->SetUp({.term = 2}).ok());
  ASSERT_TRUE(store->Define({2, 0, planner.AddVariables(variables).value()[0]}).ok());
  const Tensor& whole = store->newest()->values.at("w");
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(whole.values<float>()[i], cut_rows.at("w/part_0").values<float>()[i]);
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(whole.values<float>()[6 + i], cut_rows.at("w/part_1").values<float>()[i]);
  }
}

TEST(StoreTest, ARepeatedPushIsAcknowledgedAndNotApplied) {
  const auto store = OpenStore();
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  const Push push = SamplePush(1, {0, 1, 0}, 1.0f);
  const Push twice[] = {push, push};
  const auto results = store->Apply(twice);
  EXPECT_FALSE(results[0]->repeated_push);
  EXPECT_TRUE(results[1]->repeated_push);
  EXPECT_TRUE(ApplyOne(*store, push).repeated_push);
  EXPECT_EQ(CountOf(*store), 1);
  EXPECT_EQ(ErrorOf(*store, SamplePush(1, {0, 0, 5}, 1.0f)).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(CountOf(*store), 1);
}

TEST(StoreTest, RefusesWhatIsTooOldOrNotItsOwn) {
  const auto store = OpenStore();
  ASSERT_TRUE(SetUpSample(*store, 5, "", /*bound=*/1).ok());
  ApplyOne(*store, SamplePush(5, {0, 1, 0}, 1, 0, /*based_on=*/0));
  ApplyOne(*store, SamplePush(5, {1, 1, 0}, 1, 0, 0));
  const Status stale = ErrorOf(*store, SamplePush(5, {2, 1, 0}, 1, 0, 0));
  EXPECT_EQ(stale.code(), StatusCode::kAborted);
  EXPECT_EQ(stale.message(),
            "push of worker-2: expected values computed from one of the last 1 versions before 2, "
            "got: 0");
  ApplyOne(*store, SamplePush(5, {2, 1, 0}, 1, 0, 1));  // pulled again, the same number
  EXPECT_EQ(ErrorOf(*store, SamplePush(4, {0, 1, 1}, 1)).code(), StatusCode::kFailedPrecondition);
  Push other = SamplePush(5, {0, 1, 1}, 1, 0, 3);
  other.values.pop_back();
  EXPECT_EQ(ErrorOf(*store, other).code(), StatusCode::kInvalidArgument);
  other.request.update = "none";
  EXPECT_EQ(ErrorOf(*store, other).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->SetUp({.term = 4}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->SetUp({.term = 5, .staleness_bound = 1}).code(), StatusCode::kOk)
      << "the same again";
  EXPECT_EQ(CountOf(*store), 3);
  EXPECT_EQ(store->MakeCut({4, 1, ""}).status().code(), StatusCode::kFailedPrecondition);
}

// Refused before it is logged: nothing is applied, now or when the server comes back, and the same
// worker goes on.
TEST(StoreTest, APushThatIsNotFiniteIsRefusedAndChangesNothing) {
  const TempFolder folder;
  const StoreOptions options{.folder = folder.path()};
  {
    const auto store = OpenStore(options);
    ASSERT_TRUE(SetUpSample(*store, 1).ok());
    ApplyOne(*store, SamplePush(1, {0, 1, 0}, 1.0f));
    const auto before = store->newest()->values;
    const int64_t bytes = store->log_bytes();
    const Status refused =
        ErrorOf(*store, SamplePush(1, {0, 1, 1}, std::numeric_limits<float>::infinity()));
    EXPECT_EQ(refused.code(), StatusCode::kOutOfRange);
    EXPECT_NE(refused.message().find("from worker-0: value 0 of "), std::string::npos)
        << refused.message();
    EXPECT_EQ(store->version(), 1);
    EXPECT_EQ(store->log_bytes(), bytes);
    for (const auto& [name, value] : store->newest()->values) {
      EXPECT_TRUE(std::ranges::equal(value.bytes(), before.at(name).bytes())) << name;
    }
    ApplyOne(*store, SamplePush(1, {0, 1, 2}, 1.0f));
    EXPECT_EQ(CountOf(*store), 2);
  }
  EXPECT_EQ(CountOf(*OpenStore(options)), 2);
}

TEST(StoreTest, ABadDefinitionChangesNothing) {
  const auto store = OpenStore();
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  Definition bad = SampleDefinitions()[1];
  bad.states.clear();
  bad.updates[0].name = "again";
  bad.updates.push_back(
      {"broken", program::ParseProgram("program p\ninput x: f32[2] = %0\nstate none: f32[2] = %1\n"
                                       "%2 = add(%0, %1) : f32[2]\nupdate none = %2\n")
                     .value()});
  const Status refused = store->Define({1, 2, bad});
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused.ToString();
  EXPECT_EQ(store->definitions(), 2);
  EXPECT_FALSE(store->catalogue()->updates.contains("again"));
  EXPECT_EQ(store->Define({1, 3, {}}).code(), StatusCode::kFailedPrecondition);
  bad.updates.pop_back();
  EXPECT_TRUE(store->Define({1, 2, bad}).ok());
  EXPECT_TRUE(store->Define({1, 2, bad}).ok()) << "told twice";
}

TEST(StoreTest, TakesNoMoreMemoryThanItMay) {
  const auto store = OpenStore({.memory = 8});
  ASSERT_TRUE(store->SetUp({.term = 1}).ok());
  const Status refused = store->Define({1, 0, SampleDefinitions()[0]});
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused.ToString();
  EXPECT_NE(refused.message().find("expected to need at most 8 bytes"), std::string::npos)
      << refused.message();
  EXPECT_EQ(store->definitions(), 0);
}

TEST(StoreTest, WritesReplaceStates) {
  const auto store = OpenStore();
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  Push write{{1, {-1, 1, 0}, 0, "", {"n"}, -1}, {Tensor::Scalar<int64_t>(41)}};
  ApplyOne(*store, write);
  ApplyOne(*store, SamplePush(1, {0, 1, 0}, 1));
  EXPECT_EQ(store->newest()->values.at("n").Item(), 42);
}

}  // namespace
}  // namespace meshtrain::parameter
