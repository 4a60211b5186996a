#include "runtime/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/checkpoint/checkpoint_testing.h"

namespace meshtrain::checkpoint {
namespace {

using mesh::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string File(const std::string& header, const std::string& data = "", int64_t length = -1) {
  std::string bytes;
  const auto n = static_cast<uint64_t>(length < 0 ? static_cast<int64_t>(header.size()) : length);
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(n >> (8 * i) & 255));
  return bytes + header + data;
}

TEST(SafetensorsTest, ReadsBackWhatItWrote) {
  const TempFolder folder;
  const std::map<std::string, Tensor> tensors = {
      {"a.bias", Counting(Type("f32[3]"))},        {"a.kernel", Counting(Type("f64[2,3]"), -1.5)},
      {"mask", Counting(Type("bool[5]"))},         {"pixels", Counting(Type("u8[7]"))},
      {"step", Counting(Type("i64[]"), 1 << 20)},  {"none", Tensor(Type("f32[0,4]"))},
      {"ids \"ü\"", Counting(Type("i32[2]"), -9)},
  };
  ASSERT_EQ(WriteSafetensors(folder.At("x.safetensors"), tensors, {{"note", "kept"}}), OkStatus());
  auto file = SafetensorsReader::Open(folder.At("x.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ((*file)->header().metadata.at("note"), "kept");
  EXPECT_EQ((*file)->header().data_begin % 64, 0);
  EXPECT_EQ((*file)->header().entries.size(), tensors.size());
  for (const SafetensorsEntry& e : (*file)->header().entries) {
    EXPECT_EQ(e.begin % mesh::DTypeBytes(e.type()->dtype), 0) << e.name;  // aligned
  }
  for (const auto& [name, tensor] : tensors) {
    auto got = (*file)->Read(name);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_EQ(Bytes(*got), Bytes(tensor)) << name;
  }
  auto slice = (*file)->ReadSlice("a.kernel", {1, 1}, {1, 2});
  ASSERT_TRUE(slice.ok());
  EXPECT_EQ(Bytes(*slice), Bytes(tensors.at("a.kernel").Slice({1, 1}, {1, 2})));
  EXPECT_EQ((*file)->ReadSlice("a.kernel", {1, 1}, {2, 2}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_THAT((*file)->Read("a.kernal").status().message(), HasSubstr("did you mean `a.kernel`?"));
}

TEST(SafetensorsTest, OpensFilesWithTypesThatItCannotRead) {
  const TempFolder folder;
  Spill(folder.At("x"), File(R"({"h":{"dtype":"U16","shape":[2],"data_offsets":[0,4]},)"
                             R"("q":{"dtype":"F4","shape":[4],"data_offsets":[4,6]},)"
                             R"("b":{"dtype":"U8","shape":[1],"data_offsets":[6,7]}}   )",
                             "abcdefg"));
  auto file = SafetensorsReader::Open(folder.At("x"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ((*file)->Read("h").status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ((*file)->Read("q").status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ((*file)->Read("b")->Item(), 'g');
}

struct Case {
  std::string name;
  std::string bytes;
  std::string says;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class BadSafetensorsTest : public ::testing::TestWithParam<Case> {};

TEST_P(BadSafetensorsTest, SaysFileAndByte) {
  const TempFolder folder;
  const std::string path = folder.At("bad.safetensors");
  Spill(path, GetParam().bytes);
  const Status status = SafetensorsReader::Open(path).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
  EXPECT_THAT(status.message(), AllOf(HasSubstr(path + ": byte "), HasSubstr(GetParam().says)));
}

INSTANTIATE_TEST_SUITE_P(
    Safetensors, BadSafetensorsTest,
    ::testing::ValuesIn(std::vector<Case>{
        {"Empty", "", "byte 0: expected a safetensors file"},
        {"LengthPastEnd", File("{}", "", 3), "byte 0: expected a header length of 2 to 2, got: 3"},
        {"LengthHuge", File("{}", "", int64_t{1} << 62), "byte 0: expected a header length"},
        {"NotJson", File(R"({"a":nope})"), "byte 14: header: expected JSON"},
        {"NotObject", File("[1,2]"), "expected a JSON object"},
        {"DeepNesting", File(std::string(200000, '[')), "header: expected JSON"},
        {"NoShape", File(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", "x"),
         "tensor `a`: expected dtype, shape"},
        {"NegativeShape", File(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", "x"),
         "expected dtype, shape"},
        {"OffsetsTurned", File(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "x"),
         "expected data_offsets inside"},
        {"OffsetsPastEnd", File(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "x"),
         "inside 1 bytes of data"},
        {"ShapeOverflows",
         File(R"({"a":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,1]}})", "x"),
         "as many bytes as F64 of shape"},
        {"WrongSize", File(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,2]}})", "xy"),
         "got: 2"},
        {"Gap", File(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xy"),
         "expected it to begin at byte"},
        {"Overlap",
         File(
             R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
             "xy"),
         "tensor `b`: expected it to begin at byte"},
        {"MoreData", File(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "xy"),
         "expected the file to end"},
        {"Twice",
         File(
             R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
             "x"),
         "tensor `a`: expected each name once"},
        {"MetadataNotTexts", File(R"({"__metadata__":{"a":1}})"),
         "expected a text for `a`, got: 1"},
    }),
    [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST(SafetensorsTest, ADamagedHeaderNeverCrashes) {
  const TempFolder folder;
  const std::string path = folder.At("x");
  ASSERT_TRUE(
      WriteSafetensors(path, {{"a", Counting(Type("f32[4]"))}, {"b", Counting(Type("i64[2]"))}})
          .ok());
  const std::string good = Slurp(path);
  const auto sound = SafetensorsReader::Open(path);
  const auto header = static_cast<size_t>((*sound)->header().data_begin);
  for (size_t at = 0; at < header; ++at) {
    for (const int bit : {0, 3, 6, 7}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ 1 << bit);
      Spill(path, bytes);
      auto file = SafetensorsReader::Open(path);
      if (!file.ok()) continue;  // a name may change, so some of them open
      for (const SafetensorsEntry& e : (*file)->header().entries) (void)(*file)->Read(e.name);
    }
  }
}

TEST(SafetensorsTest, RefusesReservedNames) {
  EXPECT_EQ(PlanSafetensors({{"__metadata__", Type("f32[1]")}}, {}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(PlanSafetensors({{"a", Type("f32[1]")}, {"a", Type("f32[1]")}}, {}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(PlanSafetensors({{"\xff", Type("f32[1]")}}, {}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(SafetensorsTest, UnwritableOutputSaysWhere) {
  const Status status =
      WriteSafetensors("/proc/nothing/x.safetensors", {{"a", Counting(Type("f32[4]"))}});
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("/proc/nothing/x.safetensors"));
}

}  // namespace
}  // namespace meshtrain::checkpoint
