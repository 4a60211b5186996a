#include "runtime/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "runtime/checkpoint/save.h"
#include "tests/runtime/checkpoint/checkpoint_testing.h"

namespace meshtrain::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(WeightsTest, LoadsByPathFromAFileACheckpointOrAFolderOfThem) {
  const TempFolder folder;
  const auto kernel = Counting(Type("f32[2,3]"), 0.5);
  const auto bias = Counting(Type("f64[3]"));
  ASSERT_TRUE(WriteSafetensors(folder.At("w.safetensors"),
                               {{"a.kernel", kernel}, {"a.bias", bias}, {"more", bias}})
                  .ok());
  ASSERT_TRUE(Save(folder.At("saved"), Whole(3, {{"a.kernel", kernel}, {"a.bias", bias}})).ok());
  const std::vector<mesh::NamedType> wanted = {{"a.bias", Type("f32[3]")},
                                               {"a.kernel", Type("f32[2,3]")}};
  for (const char* path : {"w.safetensors", "saved", "saved/ckpt-00000003"}) {
    const auto got = LoadWeights(folder.At(path), wanted);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_EQ(Bytes((*got)[0]), Bytes(Counting(Type("f32[3]"))));
    EXPECT_EQ(Bytes((*got)[1]), Bytes(kernel));
  }
}

TEST(WeightsTest, NamesAllThatIsWrong) {
  const TempFolder folder;
  ASSERT_TRUE(WriteSafetensors(folder.At("w"), {{"hidden_1.kernel", Counting(Type("f32[2,3]"))},
                                                {"n", Counting(Type("i64[]"))}})
                  .ok());
  const std::vector<mesh::NamedType> wanted = {{"hidden_1.kernal", Type("f32[2,3]")},
                                               {"hidden_1.kernel", Type("f32[3,2]")},
                                               {"n", Type("f32[]")}};
  const Status status = LoadWeights(folder.At("w"), wanted).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("did you mean `hidden_1.kernel`?"),
                    HasSubstr("`hidden_1.kernel`: expected f32[3,2], got: f32[2,3]"),
                    HasSubstr("`n`: expected f32[], got: i64[]")));
  EXPECT_EQ(LoadWeights(folder.At("none"), wanted).status().code(), StatusCode::kNotFound);
}

TEST(WeightsTest, SaysWhoseTheParametersAreWhereTheyWereCompared) {
  const TempFolder folder;
  ASSERT_TRUE(WriteSafetensors(folder.At("w"), {{"a", Counting(Type("f32[3]"))}}).ok());
  ASSERT_EQ(::mkfifo(folder.At("fifo").c_str(), 0600), 0);
  const std::vector<mesh::NamedType> wanted = {{"a", Type("f32[2]")}};
  const auto message = [&](const std::string& path) {
    const Status status = LoadWeights(folder.At(path), wanted, "the model's").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.origin(), Origin::kInput);
    return status.message();
  };
  EXPECT_EQ(message("w"), folder.At("w") + ": `a`: expected f32[2], got: f32[3] (the model's)");
  EXPECT_THAT(message("fifo"), ::testing::EndsWith("expected a regular file, got: a FIFO"));
}

}  // namespace
}  // namespace meshtrain::checkpoint
