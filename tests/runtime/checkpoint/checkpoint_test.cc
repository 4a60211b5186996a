#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/save.h"
#include "tests/runtime/checkpoint/checkpoint_testing.h"

namespace meshtrain::checkpoint {
namespace {

namespace fs = std::filesystem;
using mesh::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

Snapshot Small(int64_t step) {
  return Whole(step, {{"kernel", Counting(Type("f32[4,3]"), static_cast<double>(step))},
                      {"step", Tensor::Scalar<int64_t>(step)}});
}

std::vector<int64_t> Steps(const std::string& folder) {
  std::vector<int64_t> steps;
  const auto all = ListCheckpoints(folder);
  EXPECT_TRUE(all.ok()) << all.status().ToString();
  for (const Candidate& c : *all) steps.push_back(c.step);
  return steps;
}

double FirstOf(const std::string& checkpoint) {
  auto opened = Checkpoint::Open(checkpoint);
  if (!opened.ok()) return -1;
  auto slice = (*opened)->LoadSlice("kernel", {0, 0}, {1, 1});
  return slice.ok() ? slice->Item() : -2;
}

TEST(CheckpointTest, ReadsBackWhatItSaved) {
  const TempFolder folder;
  const auto path = Save(folder.path(), Small(100));
  ASSERT_TRUE(path.ok()) << path.status().ToString();
  EXPECT_EQ(*path, folder.At("ckpt-00000100"));
  auto checkpoint = Checkpoint::Open(*path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ((*checkpoint)->index().program_hash, "00c0ffee");
  EXPECT_EQ((*checkpoint)->index().data_cursor, "epoch=1 batch=2 order=3");
  EXPECT_EQ(Bytes(*(*checkpoint)->Load("kernel")), Bytes(Counting(Type("f32[4,3]"), 100)));
  EXPECT_EQ((*checkpoint)->Load("step")->Item(), 100);
  EXPECT_EQ((*checkpoint)->Verify(), OkStatus());
  EXPECT_THAT((*checkpoint)->Load("kernl").status().message(), HasSubstr("did you mean `kernel`?"));
  EXPECT_EQ((*checkpoint)->LoadSlice("kernel", {0}, {1}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(CheckpointTest, TheIndexReadsBack) {
  const TempFolder folder;
  ASSERT_TRUE(Save(folder.path(), Small(1)).ok());
  const auto checkpoint = Checkpoint::Open(folder.At("ckpt-00000001"));
  ASSERT_TRUE(checkpoint.ok());
  const Index& index = (*checkpoint)->index();
  EXPECT_EQ(*Index::Parse(index.ToJson(), "x"), index);
}

TEST(CheckpointTest, KeepsTheNewestAndSweepsLeftovers) {
  const TempFolder folder;
  fs::create_directories(folder.At("ckpt-00000005"));  // a crash before its index
  Spill(folder.At("ckpt-00000005/shard-00000-of-00001.safetensors"), "half");
  fs::create_directories(folder.At("ckpt-notes"));  // somebody else's
  Spill(folder.At("notes.txt"), "mine");
  for (const int64_t step : {10, 20, 30, 40}) {
    ASSERT_TRUE(Save(folder.path(), Small(step), {.keep = 2}).ok());
  }
  EXPECT_EQ(Steps(folder.path()), (std::vector<int64_t>{40, 30}));
  EXPECT_FALSE(fs::exists(folder.At("ckpt-00000005")));
  EXPECT_FALSE(fs::exists(folder.At("ckpt-00000010")));
  EXPECT_TRUE(fs::exists(folder.At("ckpt-notes")));
  EXPECT_TRUE(fs::exists(folder.At("notes.txt")));
  for (const int64_t step : {50, 60, 70}) {
    ASSERT_TRUE(Save(folder.path(), Small(step), {.keep = 0}).ok());
  }
  EXPECT_EQ(Steps(folder.path()).size(), 5u);
}

// Damaged, or of a run that went further: what was saved last is what is known to be whole.
TEST(CheckpointTest, WhatWasJustSavedStaysBesideLaterSteps) {
  const TempFolder folder;
  for (const int64_t step : {70, 80, 90, 100}) {
    ASSERT_TRUE(Save(folder.path(), Small(step), {.keep = 0}).ok());
  }
  FlipByte(folder.At("ckpt-00000100/shard-00000-of-00001.safetensors"), 200);
  ASSERT_TRUE(Save(folder.path(), Small(90), {.keep = 1}).ok());
  EXPECT_EQ(Steps(folder.path()), (std::vector<int64_t>{100, 90}));
  EXPECT_EQ(FirstOf(folder.At("ckpt-00000090")), 90);
  ASSERT_TRUE(Save(folder.path(), Small(85), {.keep = 2}).ok());
  EXPECT_EQ(Steps(folder.path()), (std::vector<int64_t>{100, 90, 85}));
  ASSERT_TRUE(Save(folder.path(), Small(100), {.keep = 1}).ok());
  EXPECT_EQ(Steps(folder.path()), (std::vector<int64_t>{100}));
}

// A folder that cannot be looked into may hold the newest: it is not taken for none, nor for what a
// crash left.
TEST(CheckpointTest, WhatCannotBeLookedIntoIsAnErrorAndStays) {
  const TempFolder folder;
  ASSERT_TRUE(Save(folder.path(), Small(1)).ok());
  const std::string loop = folder.At("ckpt-00000002");
  fs::create_symlink("ckpt-00000002", loop);  // stat: ELOOP
  const Status listed = ListCheckpoints(folder.path()).status();
  EXPECT_FALSE(listed.ok());
  EXPECT_THAT(listed.message(), HasSubstr(loop + ": cannot look into: "));
  EXPECT_TRUE(ListIncomplete(folder.path()).empty());
  ASSERT_TRUE(Save(folder.path(), Small(3), {.keep = 1}).ok());
  EXPECT_TRUE(fs::is_symlink(loop));
  fs::remove(loop);
  EXPECT_EQ(Steps(folder.path()), (std::vector<int64_t>{3, 1}));
}

TEST(CheckpointTest, PartsOfTwoRunsAreNoCheckpointAndWhatDiffersIsNamed) {
  Index first{.step = 20, .mesh = "batch=2", .program_hash = "e0", .data_cursor = "order=1"};
  Index other = first;
  other.data_cursor = "order=2";
  EXPECT_EQ(MergeIndexes({first, other}).status(),
            InvalidArgument("checkpoint: part 1: expected the data of part 0, order=1, got: "
                            "order=2"));
  other = first;
  other.metadata["epoch"] = "2";
  EXPECT_EQ(MergeIndexes({other, first}).status(),
            InvalidArgument("checkpoint: part 1: expected the epoch of part 0, 2, got: none"));
}

TEST(CheckpointTest, WithoutAnIndexItIsNone) {
  const TempFolder folder;
  EXPECT_EQ(FindLatest(folder.path()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(FindLatest(folder.At("missing")).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(Save(folder.path(), Small(1)).ok());
  ASSERT_TRUE(WritePart(folder.path(), Small(2), 0, 1).ok());  // and then the power failed
  EXPECT_EQ(FindLatest(folder.path())->step, 1);
  ASSERT_EQ(ListIncomplete(folder.path()).size(), 1u);
  EXPECT_EQ(ListIncomplete(folder.path())[0].step, 2);
}

TEST(CheckpointTest, SavingAStepAgainKeepsTheOldOneUntilTheCommit) {
  const TempFolder folder;
  ASSERT_TRUE(Save(folder.path(), Small(7)).ok());
  Snapshot again = Small(7);
  again.variables[0].blocks[0].value = Counting(Type("f32[4,3]"), 1000);
  const auto part = WritePart(folder.path(), again, 0, 1);
  ASSERT_TRUE(part.ok()) << part.status().ToString();
  EXPECT_EQ(FirstOf(folder.At("ckpt-00000007")), 7);
  ASSERT_TRUE(Commit(folder.path(), {*part}).ok());
  EXPECT_EQ(FirstOf(folder.At("ckpt-00000007")), 1000);
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder.At("ckpt-00000007"))) {
    files += entry.is_regular_file();
  }
  EXPECT_EQ(files, 2);  // the index and the new shard
}

// Every byte of both files, one flip at a time: never a wrong value, always a name and an offset.
TEST(CheckpointTest, AFlippedByteIsDataLossWithFileAndOffset) {
  const TempFolder folder;
  const std::string path = *Save(folder.path(), Small(3));
  const std::string shard = path + "/shard-00000-of-00001.safetensors";
  for (const std::string& file : {shard, path + "/index.json"}) {
    const std::string good = Slurp(file);
    for (size_t at = 0; at < good.size(); ++at) {
      FlipByte(file, at);
      Status status;
      auto opened = Checkpoint::Open(path);
      status = opened.ok() ? (*opened)->Verify() : opened.status();
      if (file == shard || at + 1 < good.size()) {  // the index's last byte is a line end: turned
                                                    // into another space or not
        ASSERT_EQ(status.code(), StatusCode::kDataLoss)
            << file << " byte " << at << ": " << status.ToString();
        ASSERT_THAT(status.message(), AllOf(HasSubstr(file + ": byte")));
      }
      Spill(file, good);
    }
  }
  EXPECT_EQ(FirstOf(path), 3);
}

// Sound by its checksum, and nonsense: made by hand or by another program.
TEST(CheckpointTest, NumbersThatNoRunWritesAreDataLoss) {
  const TempFolder folder;
  const std::string path = *Save(folder.path(), Small(3));
  const std::string file = path + "/index.json";
  const std::string good = Slurp(file);
  const auto opened = [&](const auto& change) {
    Index index = *Index::Parse(good, file);
    change(index);
    Spill(file, index.ToJson());
    return Checkpoint::Open(path).status();
  };
  const auto expect = [](const Status& status, const std::string& what) {
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(what));
  };
  EXPECT_EQ(opened([](Index&) {}), OkStatus());
  const std::string range = "expected a whole number from 0 to 9007199254740992, got: ";
  expect(opened([](Index& i) { i.step = int64_t{1} << 62; }),
         "step: " + range + "4611686018427387904");
  expect(opened([](Index& i) { i.step = INT64_MIN; }), "step: " + range + "-9223372036854775808");
  expect(opened([](Index& i) { i.generation = INT64_MAX; }), "generation: " + range);
  expect(opened([](Index& i) { i.step = 4; }), "step: expected 3, as its folder is named, got: 4");
  expect(opened([](Index& i) { i.files[0].bytes = INT64_MIN; }), "bytes: expected a whole number");
  expect(opened([](Index& i) { i.files[0].header_bytes = -1; }), "header_bytes: expected");
  expect(opened([](Index& i) { i.variables.at("kernel").shards[0].begin = -1; }),
         "begin: expected");
  expect(opened([](Index& i) { i.variables.at("kernel").shards[0].box.sizes[0] = -1; }),
         "sizes: expected a list of sizes");
  expect(opened([](Index& i) { i.files[0].name = std::string("a\0b", 3); }),
         "expected a plain file name, got: a\\x00b");
  // What prints a tree goes a call deeper for each of its levels.
  Spill(file, "{\"index\":" + std::string(1 << 20, '[') + std::string(1 << 20, ']') + "}");
  expect(Checkpoint::Open(path).status(), "expected JSON of at most 64 levels, got: 1048577");
}

TEST(CheckpointTest, AStepThatCouldNotBeReadBackIsNotSaved) {
  const TempFolder folder;
  EXPECT_EQ(Save(folder.path(), Small(kMostSteps + 1)).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(Save(folder.path(), Small(kMostSteps)).ok());
  EXPECT_TRUE(Checkpoint::Open(FindLatest(folder.path())->path).ok());
}

TEST(CheckpointTest, SaysWhichBytesAreWrong) {
  const TempFolder folder;
  Snapshot snapshot =
      Whole(1, {{"big", Counting(Type("f32[1000,1000]"))}, {"small", Counting(Type("f32[2]"))}});
  const std::string path = *Save(folder.path(), snapshot, {});
  const std::string shard = path + "/shard-00000-of-00001.safetensors";
  auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok());
  const int64_t begin = (*checkpoint)->index().variables.at("big").shards[0].begin;
  FlipByte(shard, static_cast<size_t>(begin + kChunkBytes + 17));
  const Status status = (*checkpoint)->Load("big").status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              HasSubstr(shard + ": bytes " + std::to_string(begin + kChunkBytes) + " to " +
                        std::to_string(begin + 2 * kChunkBytes) + " (variable `big`)"));
  // What does not touch those bytes still loads.
  EXPECT_TRUE((*checkpoint)->Load("small").ok());
  EXPECT_TRUE((*checkpoint)->LoadSlice("big", {0, 0}, {200, 1000}).ok());
  EXPECT_FALSE((*checkpoint)->LoadSlice("big", {262, 144}, {1, 200}).ok());
}

TEST(CheckpointTest, MissingAndCutShardsAreDataLoss) {
  const TempFolder folder;
  const std::string path = *Save(folder.path(), Small(3));
  const std::string shard = path + "/shard-00000-of-00001.safetensors";
  const std::string good = Slurp(shard);
  Spill(shard, good.substr(0, good.size() - 1));
  EXPECT_EQ(Checkpoint::Open(path).status().code(), StatusCode::kDataLoss);
  fs::remove(shard);
  const Status status = Checkpoint::Open(path).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr(shard));
}

TEST(CheckpointTest, TheCallerCanFallBack) {
  const TempFolder folder;
  for (const int64_t step : {1, 2, 3}) ASSERT_TRUE(Save(folder.path(), Small(step)).ok());
  FlipByte(folder.At("ckpt-00000003/shard-00000-of-00001.safetensors"), 20);
  FlipByte(folder.At("ckpt-00000002/index.json"), 20);
  double found = 0;
  const std::vector<Candidate> all = *ListCheckpoints(folder.path());
  EXPECT_EQ(all.size(), 3u);
  for (const Candidate& c : all) {
    auto checkpoint = Checkpoint::Open(c.path);
    if (!checkpoint.ok()) continue;
    found = (*checkpoint)->LoadSlice("kernel", {0, 0}, {1, 1})->Item();
    break;
  }
  EXPECT_EQ(found, 1);
}

TEST(CheckpointTest, RefusesBlocksThatDoNotCoverTheirVariable) {
  const TempFolder folder;
  Snapshot half = Whole(1, {{"w", Counting(Type("f32[4]"))}});
  half.variables[0].type = Type("f32[8]");
  EXPECT_THAT(Save(folder.path(), half).status().message(), HasSubstr("got: 4 of 8 elements"));
  half.variables[0].blocks.push_back({{2}, Counting(Type("f32[4]"))});
  EXPECT_THAT(Save(folder.path(), half).status().message(), HasSubstr("do not overlap"));
  half.variables[0].blocks[1].offsets = {6};
  EXPECT_THAT(Save(folder.path(), half).status().message(), HasSubstr("expected blocks of f32[8]"));
  EXPECT_TRUE(ListCheckpoints(folder.path())->empty());
}

TEST(CheckpointTest, UnwritableOutputSaysWhere) {
  const Status status = Save("/proc/meshtrain", Small(1)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("/proc/meshtrain"));
}

TEST(CheckpointTest, ExportsOneFileOfWholeVariables) {
  const TempFolder folder;
  Snapshot snapshot = Small(3);
  snapshot.variables[0].blocks = {{{0, 0}, Counting(Type("f32[4,3]"), 3).Slice({0, 0}, {4, 1})},
                                  {{0, 1}, Counting(Type("f32[4,3]"), 3).Slice({0, 1}, {4, 2})}};
  auto checkpoint = Checkpoint::Open(*Save(folder.path(), snapshot));
  ASSERT_TRUE(checkpoint.ok());
  ASSERT_EQ(
      (*checkpoint)
          ->Export(folder.At("model.safetensors"), [](std::string_view n) { return n != "step"; }),
      OkStatus());
  auto file = SafetensorsReader::Open(folder.At("model.safetensors"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->header().entries.size(), 1u);
  EXPECT_EQ(Bytes(*(*file)->Read("kernel")), Bytes(Counting(Type("f32[4,3]"), 3)));
}

}  // namespace
}  // namespace meshtrain::checkpoint
