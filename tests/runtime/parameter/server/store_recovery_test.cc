// What is left of a store when it is opened again: after kills, checkpoints, damage and full disks.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "runtime/base/file.h"
#include "runtime/checkpoint/save.h"
#include "runtime/parameter/server/store.h"
#include "tests/runtime/parameter/full_disk.h"
#include "tests/runtime/parameter/seed.h"
#include "tests/runtime/parameter/server/store_opening.h"
#include "tests/runtime/parameter/server/store_testing.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::parameter {
namespace {

using namespace testing_store;  // NOLINT: the test's own words
using testing_folder::TempFolder;
namespace fs = std::filesystem;

TEST(StoreTest, AKilledServerComesBackAsItWas) {
  const TempFolder folder;
  const StoreOptions options{.folder = folder.path() + "/ps-0"};
  std::string want;
  {
    const auto store = OpenStore(options);
    ASSERT_TRUE(SetUpSample(*store, 3).ok());
    for (int i = 0; i < 5; ++i) {
      ApplyOne(*store, SamplePush(3, {0, 1, i}, 0.1f * static_cast<float>(i)));
    }
    want = Fingerprint(*store);
  }
  const auto store = OpenStore(options);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->term(), 3);
  EXPECT_EQ(store->version(), 5);
  EXPECT_EQ(store->definitions(), 2);
  EXPECT_EQ(Fingerprint(*store), want);
  EXPECT_EQ(store->newest()->values.size(), 3u);
  EXPECT_TRUE(ApplyOne(*store, SamplePush(3, {0, 1, 4}, 9)).repeated_push);
  EXPECT_EQ(ApplyOne(*store, SamplePush(3, {0, 1, 5}, 9)).version, 6);
}

TEST(StoreTest, ACheckpointTrimsTheLogAndIsTheNewBase) {
  const TempFolder folder;
  const StoreOptions options{.folder = folder.path() + "/ps-0"};
  const std::string checkpoints = folder.path() + "/checkpoints";
  auto store = OpenStore(options);
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  for (int i = 0; i < 20; ++i) ApplyOne(*store, SamplePush(1, {0, 1, i}, 1));
  const int64_t long_log = store->log_bytes();
  ASSERT_TRUE(SaveCheckpoint(*store, checkpoints, 20).ok());
  EXPECT_LT(store->log_bytes(), long_log / 4);
  EXPECT_EQ(ListSegments(options.folder)->size(), 1u);
  ApplyOne(*store, SamplePush(1, {0, 1, 20}, 1));
  const std::string want = Fingerprint(*store);
  store = OpenStore(options);
  EXPECT_EQ(store->version(), 21);
  EXPECT_EQ(Fingerprint(*store), want);

  // A cut whose checkpoint was never complete, pushes after it, a kill: the log goes on from the
  // one before.
  ASSERT_TRUE(store->MakeCut({1, 30, checkpoints}).ok());
  ApplyOne(*store, SamplePush(1, {0, 1, 21}, 1));
  const std::string newer = Fingerprint(*store);
  store = OpenStore(options);
  EXPECT_EQ(Fingerprint(*store), newer);

  // A complete one that the server was not told of.
  ASSERT_TRUE(SaveCheckpoint(*store, checkpoints, 40, /*tell_the_store=*/false).ok());
  ApplyOne(*store, SamplePush(1, {0, 1, 22}, 1));
  const std::string newest = Fingerprint(*store);
  store = OpenStore(options);
  EXPECT_EQ(Fingerprint(*store), newest);
  EXPECT_EQ(CountOf(*store), 23);
}

// The second cut of a step is not made complete by the first one's checkpoint.
TEST(StoreTest, AStepThatIsSavedTwiceLosesNothing) {
  const TempFolder folder;
  const StoreOptions options{.folder = folder.path() + "/ps-0"};
  const std::string checkpoints = folder.path() + "/checkpoints";
  auto store = OpenStore(options);
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  ApplyOne(*store, SamplePush(1, {0, 1, 0}, 1));
  ASSERT_TRUE(SaveCheckpoint(*store, checkpoints, 40).ok());
  ApplyOne(*store, SamplePush(1, {0, 1, 1}, -2));
  ASSERT_TRUE(store->MakeCut({1, 40, checkpoints}).ok());
  ApplyOne(*store, SamplePush(1, {0, 1, 2}, 1));
  const std::string want = Fingerprint(*store);
  store = OpenStore(options);
  EXPECT_EQ(Fingerprint(*store), want);
  // Nor is the second's by the first's, when both are.
  ASSERT_TRUE(SaveCheckpoint(*store, checkpoints, 40, /*tell_the_store=*/false).ok());
  ApplyOne(*store, SamplePush(1, {0, 1, 3}, -1));
  const std::string newest = Fingerprint(*store);
  store = OpenStore(options);
  EXPECT_EQ(Fingerprint(*store), newest);
}

TEST(StoreTest, ALostWorkersLatePushIsRefusedThroughARestartToo) {
  const TempFolder folder;
  const StoreOptions options{.folder = folder.path() + "/ps-0"};
  const std::string checkpoints = folder.path() + "/checkpoints";
  auto store = OpenStore(options);
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  ApplyOne(*store, SamplePush(1, {0, 1, 0}, 1));
  store->Fence(2, std::vector<int64_t>{5});  // another term's
  ApplyOne(*store, SamplePush(1, {0, 1, 1}, 1));
  store->Fence(1, std::vector<int64_t>{2});
  EXPECT_EQ(ErrorOf(*store, SamplePush(1, {0, 1, 2}, 1)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->version(), 2);
  ASSERT_TRUE(SaveCheckpoint(*store, checkpoints, 10).ok());
  store = OpenStore(options);
  EXPECT_EQ(ErrorOf(*store, SamplePush(1, {0, 1, 2}, 1)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(ApplyOne(*store, SamplePush(1, {0, 2, 0}, 1)).version, 3);
  // And by a cut itself: what it holds is whole.
  ASSERT_TRUE(store->MakeCut({1, 20, checkpoints, {3}}).ok());
  EXPECT_EQ(ErrorOf(*store, SamplePush(1, {0, 2, 1}, 1)).code(), StatusCode::kFailedPrecondition);
}

TEST(StoreTest, TheCheckpointHoldsWholeVariablesUnderTheirOwnNames) {
  const TempFolder folder;
  const auto store = OpenStore();
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  for (int i = 0; i < 3; ++i) ApplyOne(*store, SamplePush(1, {0, 1, i}, 1));
  ASSERT_TRUE(SaveCheckpoint(*store, folder.path(), 3).ok());
  const auto saved = checkpoint::Checkpoint::Open(checkpoint::CheckpointFolder(folder.path(), 3));
  ASSERT_TRUE(saved.ok()) << saved.status().ToString();
  std::vector<std::string> names;
  for (const auto& [name, record] : (*saved)->index().variables) {
    names.push_back(name + " " + record.type.ToString());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"n i64[]", "optimizer.iterations i64[]",
                                             "optimizer.m.w f32[5,2]", "optimizer.v.w f32[5,2]",
                                             "w f32[5,2]"}));
  const auto w = (*saved)->Load("w");
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(w->values<float>()[7], store->newest()->values.at("w/part_1").values<float>()[1]);

  // Another term, on another number of shards, begins with it.
  const std::string want = Fingerprint(*store);
  const auto other = OpenStore();
  const Status begun = SetUpSample(*other, 2, (*saved)->path());
  ASSERT_TRUE(begun.ok()) << begun.ToString();
  EXPECT_EQ(Fingerprint(*other), want);
  EXPECT_EQ(other->version(), 0);
}

TEST(StoreTest, ARestoredSessionSurvivesAKillBeforeItsFirstCheckpoint) {
  const TempFolder folder;
  const StoreOptions options{.folder = folder.path() + "/ps-0"};
  auto store = OpenStore(options);
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  ApplyOne(*store, SamplePush(1, {0, 1, 0}, 1));
  ASSERT_TRUE(SaveCheckpoint(*store, folder.path(), 1).ok());
  ASSERT_TRUE(SetUpSample(*store, 2, checkpoint::CheckpointFolder(folder.path(), 1)).ok());
  EXPECT_EQ(CountOf(*store), 1);
  ApplyOne(*store, SamplePush(2, {0, 1, 0}, 1));
  const std::string want = Fingerprint(*store);
  store = OpenStore(options);
  EXPECT_EQ(store->term(), 2);
  EXPECT_EQ(store->version(), 1);
  EXPECT_EQ(Fingerprint(*store), want);
}

TEST(StoreTest, AnotherRunsCheckpointOfTheSameStepIsNotTaken) {
  const TempFolder folder;
  const StoreOptions options{.folder = folder.path() + "/ps-0"};
  auto store = OpenStore(options);
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  ASSERT_TRUE(SaveCheckpoint(*store, folder.path(), 7).ok());
  ASSERT_TRUE(SetUpSample(*store, 2).ok());
  ApplyOne(*store, SamplePush(2, {0, 1, 0}, 1));
  const std::string want = Fingerprint(*store);
  ASSERT_TRUE(
      store->MakeCut({2, 7, folder.path()}).ok());  // never written: step 7 is the other run's
  store = OpenStore(options);
  EXPECT_EQ(Fingerprint(*store), want);
}

TEST(StoreTest, ALongLogIsReplacedByItsState) {
  const TempFolder folder;
  const StoreOptions options{.folder = folder.path() + "/ps-0", .compact_log_bytes = 5000};
  auto store = OpenStore(options);
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  for (int i = 0; i < 200; ++i) {
    ApplyOne(*store, SamplePush(1, {0, 1, i}, 1));
    ASSERT_LT(store->log_bytes(), 6000);
  }
  EXPECT_EQ(ListSegments(options.folder)->size(), 1u);
  const std::string want = Fingerprint(*store);
  store = OpenStore(options);
  EXPECT_EQ(store->version(), 200);
  EXPECT_EQ(Fingerprint(*store), want);
}

// The store's term is begun anew and takes pushes, which outlive it.
void ExpectGoesOnWith(std::unique_ptr<Store> store, const StoreOptions& options,
                      const SetUpRequest& request) {
  const int64_t term = request.term;
  const Status set_up = SetUpSample(*store, term, request.restore, request.staleness_bound);
  ASSERT_TRUE(set_up.ok()) << set_up.ToString();
  EXPECT_EQ(ApplyOne(*store, SamplePush(term, {0, 1, 0}, 1)).version, 1);
  const std::string want = Fingerprint(*store);
  store.reset();
  store = OpenStore(options);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->term(), term);
  EXPECT_EQ(CountOf(*store), 1);
  EXPECT_EQ(Fingerprint(*store), want);
}

TEST(StoreTest, DamageToWhatWasAcknowledgedIsTold) {
  const TempFolder folder;
  const StoreOptions options{.folder = folder.path() + "/ps-0"};
  auto store = OpenStore(options);
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  for (int i = 0; i < 3; ++i) ApplyOne(*store, SamplePush(1, {0, 1, i}, 1));
  store.reset();
  const std::string path = SegmentPath(options.folder, 1);
  std::string bytes = ReadFile(path).value();
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  ASSERT_TRUE(WriteFileAtomically(path, bytes).ok());
  testing::internal::CaptureStderr();
  store = OpenStore(options);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("level=error"), std::string::npos) << log;
  EXPECT_NE(log.find(path + ": byte "), std::string::npos) << log;
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->term(), 0) << "the coordinator sees that, and says so";
  EXPECT_EQ(ReadFile(SegmentPath(options.folder + "/aside", 1)).value(), bytes);
  EXPECT_TRUE(fs::exists(options.folder + "/aside/term"));
  ExpectGoesOnWith(std::move(store), options, {.term = 2});

  // And a segment that is gone.
  ASSERT_TRUE(RemoveFile(path).ok());
  ASSERT_TRUE(WriteFileAtomically(SegmentPath(options.folder, 2), bytes.substr(0, 8)).ok());
  store = OpenStore(options);
  EXPECT_EQ(store->version(), 0) << "the coordinator sees that, and says so";
}

// Moved, it found no checkpoint; copied, it took that of the folder that it had been copied from.
TEST(StoreTest, ALogThatIsMovedWithItsCheckpointsGoesOnFromThem) {
  const TempFolder folder;
  const std::string here = folder.path() + "/here", there = folder.path() + "/there";
  const auto options = [](const std::string& checkpoints) {
    return StoreOptions{.folder = checkpoints + "/parameter_servers/ps-0"};
  };
  auto store = OpenStore(options(here));
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  ApplyOne(*store, SamplePush(1, {0, 1, 0}, 1));
  ASSERT_TRUE(SaveCheckpoint(*store, here, 1).ok());
  ApplyOne(*store, SamplePush(1, {0, 1, 1}, 1));
  const std::string want = Fingerprint(*store);
  store.reset();
  fs::rename(here, there);
  store = OpenStore(options(there));
  EXPECT_EQ(store->version(), 2);
  EXPECT_EQ(Fingerprint(*store), want);
  store.reset();
  fs::copy(there, here, fs::copy_options::recursive);
  fs::remove_all(checkpoint::CheckpointFolder(here, 1));
  EXPECT_EQ(OpenStore(options(here))->term(), 0) << "the other folder's is not its own";
}

// It refused to start for as long as the folder stayed as it was.
TEST(StoreTest, WithoutTheCheckpointThatItsLogGoesOnFromItServesTheNextSession) {
  for (const std::string_view fault : {"removed", "damaged", "restored one removed"}) {
    SCOPED_TRACE(fault);
    const TempFolder folder;
    const StoreOptions options{.folder = folder.path() + "/ps-0"};
    auto store = OpenStore(options);
    ASSERT_TRUE(SetUpSample(*store, 1).ok());
    ApplyOne(*store, SamplePush(1, {0, 1, 0}, 1));
    ASSERT_TRUE(SaveCheckpoint(*store, folder.path(), 20).ok());
    const std::string checkpoint = checkpoint::CheckpointFolder(folder.path(), 20);
    if (fault == "restored one removed") {
      ASSERT_TRUE(SetUpSample(*store, 2, checkpoint).ok());
    }
    store.reset();
    if (fault == "damaged") {
      for (const auto& file : fs::directory_iterator(checkpoint)) {
        if (file.path().extension() != ".safetensors") continue;
        std::string bytes = ReadFile(file.path().string()).value();
        bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 4);
        ASSERT_TRUE(WriteFileAtomically(file.path().string(), bytes).ok());
      }
    } else {
      fs::remove_all(checkpoint);
    }
    store = OpenStore(options);
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(store->term(), 0);
    EXPECT_TRUE(fs::exists(options.folder + "/aside/term"));
    ExpectGoesOnWith(std::move(store), options, {.term = 3});
  }
}

// Random lives of a server: pushes in groups, some sent twice, checkpoints complete or not,
// definitions, kills at any time with a torn write at the end. After each kill the state is that of
// a server that was never killed.
TEST(StorePropertyTest, NoAcknowledgedPushIsLostOrAppliedTwice) {
  const uint64_t seed = testing_seed::FromEnvironment();
  for (uint64_t s = seed; s < seed + 12; ++s) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(s));
    std::mt19937_64 random(s);
    const auto below = [&](uint64_t n) { return random() % n; };
    const TempFolder folder;
    const StoreOptions options{.folder = folder.path() + "/ps-0",
                               .compact_log_bytes = below(2) == 0 ? 4000 : 1 << 30};
    auto store = OpenStore(options);
    const auto immortal = OpenStore();
    ASSERT_TRUE(SetUpSample(*store, 1).ok());
    ASSERT_TRUE(SetUpSample(*immortal, 1).ok());
    int64_t next_seq[3] = {0, 0, 0};
    std::vector<Push> sent;
    int64_t step = 0;
    for (int event = 0; event < 40; ++event) {
      switch (below(6)) {
        default: {
          std::vector<Push> group;
          for (uint64_t n = 1 + below(4); n > 0; --n) {
            if (!sent.empty() && below(4) == 0) {
              group.push_back(sent[sent.size() - 1 - below(std::min<uint64_t>(sent.size(), 3))]);
              continue;
            }
            const auto worker = static_cast<int32_t>(below(3));
            const int64_t seq = next_seq[worker]++;
            group.push_back(
                SamplePush(1, {worker, 1, seq}, static_cast<float>(below(100)) / 50 - 1, seq));
            sent.push_back(group.back());
          }
          for (const auto& result : store->Apply(group)) {
            ASSERT_TRUE(result.ok()) << result.status().ToString();
          }
          for (const auto& result : immortal->Apply(group)) ASSERT_TRUE(result.ok());
          break;
        }
        case 1: {
          if (below(3) != 0) ++step;  // or the same again
          const int64_t at = step;
          const auto cut = store->MakeCut({1, at, folder.path()});
          ASSERT_TRUE(cut.ok()) << cut.status().ToString();
          const uint64_t how_far = below(3);
          if (how_far == 0) break;
          const auto part = WriteCut(*cut, "", VersionOf(*cut));
          ASSERT_TRUE(part.ok()) << part.status().ToString();
          ASSERT_TRUE(checkpoint::Commit(folder.path(), {*part}, {.keep = 1}).ok());
          if (how_far == 1) break;
          ASSERT_TRUE(store->Committed({1, at}).ok());
          break;
        }
        case 2: {
          store.reset();
          // A write that the kill cut off, or pages of it that never reached the disk.
          const std::vector<Segment> segments = *ListSegments(options.folder);
          std::string bytes = ReadFile(segments.back().path).value();
          const Bytes none[] = {{}};
          std::string torn =
              EncodeRecord("not to be seen", none, static_cast<int64_t>(bytes.size()));
          torn.resize(below(torn.size()));
          if (below(2) == 0) std::fill(torn.begin(), torn.end(), '\0');
          ASSERT_TRUE(WriteFileAtomically(segments.back().path, bytes + torn).ok());
          store = OpenStore(options);
          ASSERT_NE(store, nullptr);
          break;
        }
      }
      ASSERT_EQ(store->version(), immortal->version());
      ASSERT_EQ(Fingerprint(*store), Fingerprint(*immortal)) << "event " << event;
    }
    ASSERT_EQ(CountOf(*store), next_seq[0] + next_seq[1] + next_seq[2]);
  }
}

// It refused pushes and answered pings without end.
TEST(StoreTest, ADiskThatStaysFullIsGivenUp) {
  const TempFolder folder;
  const StoreOptions options{.folder = folder.path() + "/ps-0",
                             .no_room_timeout = std::chrono::milliseconds(200)};
  const auto store = OpenStore(options);
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  ApplyOne(*store, SamplePush(1, {0, 1, 0}, 1));
  const auto refused = [&](int64_t seq) {
    const FullDisk disk(static_cast<rlim_t>(store->log_bytes()));
    const Status status = ErrorOf(*store, SamplePush(1, {0, 1, seq}, 1));
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
    EXPECT_EQ(status.origin(), Origin::kOutput);
  };
  const auto wait = [] { SystemClock().SleepFor(std::chrono::milliseconds(300), {}); };
  refused(1);
  EXPECT_TRUE(store->health().ok());
  wait();
  ApplyOne(*store, SamplePush(1, {0, 1, 1}, 1));  // there is room again
  refused(2);
  EXPECT_TRUE(store->health().ok()) << store->health().ToString();
  wait();
  refused(2);
  EXPECT_EQ(store->health().code(), StatusCode::kResourceExhausted) << store->health().ToString();
  EXPECT_EQ(store->health().origin(), Origin::kOutput);
  EXPECT_FALSE(ErrorOf(*store, SamplePush(1, {0, 1, 2}, 1)).ok());
  EXPECT_EQ(CountOf(*OpenStore(options)), 2) << "what was acknowledged";
}

// The request comes again after 100 ms, and was told that all is well: the first push then found no
// log to be written to.
TEST(StoreTest, ASetUpThatADiskRefusedIsDoneByTheNext) {
  const SetUpRequest request{.term = 3, .staleness_bound = 0};  // shorter than a first segment
  int refused_term = 0, refused_segment = 0, taken = 0;
  // From no byte at all to room for both files.
  for (rlim_t bytes = 0; bytes <= 128; bytes += 8) {
    SCOPED_TRACE(bytes);
    const TempFolder folder;
    const StoreOptions options{.folder = folder.path() + "/ps-0"};
    auto store = OpenStore(options);
    Status status;
    {
      const FullDisk disk(bytes);
      status = store->SetUp(request);
    }
    if (status.ok()) {
      ++taken;
    } else {
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
      ++(fs::file_size(options.folder + "/term") == 0 ? refused_term : refused_segment);
      EXPECT_EQ(store->term(), 0);
      EXPECT_EQ(store->SetUp({.term = 2}).code(), StatusCode::kFailedPrecondition)
          << "the coordinator before that one is over all the same";
    }
    ExpectGoesOnWith(std::move(store), options, request);
  }
  EXPECT_GT(refused_term, 0);
  EXPECT_GT(refused_segment, 0);
  EXPECT_GT(taken, 0);
}

// The old term was still there for its coordinator, without a log.
TEST(StoreTest, ASessionThatCouldNotBeForgottenWholeIsOver) {
  const TempFolder folder;
  const StoreOptions options{.folder = folder.path() + "/ps-0"};
  auto store = OpenStore(options);
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  const std::string no_file = SegmentPath(options.folder, 7);
  fs::create_directory(no_file);  // which no unlink removes
  const Status refused = store->SetUp({.term = 2});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find(no_file), std::string::npos) << refused.ToString();
  EXPECT_EQ(store->term(), 0);
  EXPECT_EQ(ErrorOf(*store, SamplePush(1, {0, 1, 0}, 1)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->SetUp({.term = 1}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->Define({}).code(), StatusCode::kFailedPrecondition) << "of no term";
  fs::remove(no_file);
  ExpectGoesOnWith(std::move(store), options, {.term = 2});
}

}  // namespace
}  // namespace meshtrain::parameter
