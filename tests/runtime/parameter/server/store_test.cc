#include "runtime/parameter/server/store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <limits>
#include <random>

#include "runtime/base/file.h"
#include "runtime/checkpoint/save.h"
#include "tests/runtime/parameter/seed.h"
#include "tests/runtime/parameter/server/store_testing.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::parameter {
namespace {

using namespace testing_store;  // NOLINT: the test's own words
using testing_folder::TempFolder;
namespace fs = std::filesystem;

std::unique_ptr<Store> OpenStore(StoreOptions options = {}) {
  auto store = Store::Open(std::move(options));
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return store.ok() ? std::move(*store) : nullptr;
}

PushReply ApplyOne(Store& store, const Push& push) {
  const auto results = store.Apply({&push, 1});
  EXPECT_EQ(results.size(), 1u);
  EXPECT_TRUE(results[0].ok()) << results[0].status().ToString();
  return results[0].ok() ? *results[0] : PushReply{};
}

Status ErrorOf(Store& store, const Push& push) { return store.Apply({&push, 1})[0].status(); }

std::map<std::string, std::string> VersionOf(const Cut& cut) {
  return {{std::string(kVersionsKey), std::to_string(cut.version)}};
}

// Cuts, writes and commits the checkpoint of `step`, as a coordinator does.
Status SaveCheckpoint(Store& store, const std::string& folder, int64_t step,
                      bool tell_the_store = true) {
  MT_ASSIGN_OR_RETURN(const Cut cut, store.MakeCut({store.session(), step, folder}));
  MT_ASSIGN_OR_RETURN(const checkpoint::Index part, WriteCut(cut, "hash", VersionOf(cut)));
  MT_RETURN_IF_ERROR(checkpoint::Commit(folder, {part}, {.keep = 2}).status());
  return tell_the_store ? store.Committed({store.session(), step}) : OkStatus();
}

TEST(StoreTest, APushChangesWhatWorkersRead) {
  const auto store = OpenStore();
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  const std::shared_ptr<const Snapshot> before = store->snapshot();
  ASSERT_EQ(before->values.size(), 3u);  // w/part_0, w/part_1, n; no slots
  const Push pushes[] = {SamplePush(1, {0, 1, 0}, 1.0f), SamplePush(1, {1, 1, 0}, 1.0f)};
  const auto results = store->Apply(pushes);
  EXPECT_EQ(results[0]->version, 1);
  EXPECT_EQ(results[1]->version, 2);
  const std::shared_ptr<const Snapshot> after = store->snapshot();
  EXPECT_EQ(after->version, 2);
  EXPECT_EQ(after->values.at("n").Item(), 2);
  // Adam's first step is of the learning rate's length, whatever the gradient's.
  const float was = before->values.at("w/part_1").values<float>()[3];
  EXPECT_NEAR(after->values.at("w/part_1").values<float>()[3], was - 0.02f, 1e-5f);
  EXPECT_EQ(before->values.at("n").Item(), 0) << "a snapshot stays as it was";
}

TEST(StoreTest, ShardsBeginAsRowsOfTheWhole) {
  const auto store = OpenStore();
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  const auto cut_rows = store->snapshot()->values;
  // The same job, not cut.
  Planner planner(Whole{}, 1, 7);
  const std::vector<Parameter> variables = {
      Parameter("w", TensorType{DType::kF32, {5, 2}}, nn::Initializer::Uniform(-1, 1))};
  ASSERT_TRUE(store->SetUp({.session = 2}).ok());
  ASSERT_TRUE(store->Define({2, 0, planner.AddVariables(variables).value()[0]}).ok());
  const Tensor& whole = store->snapshot()->values.at("w");
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
  EXPECT_EQ(store->SetUp({.session = 4}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->SetUp({.session = 5, .staleness_bound = 1}).code(), StatusCode::kOk)
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
    const auto before = store->snapshot()->values;
    const int64_t bytes = store->log_bytes();
    const Status refused =
        ErrorOf(*store, SamplePush(1, {0, 1, 1}, std::numeric_limits<float>::infinity()));
    EXPECT_EQ(refused.code(), StatusCode::kOutOfRange);
    EXPECT_NE(refused.message().find("from worker-0: value 0 of "), std::string::npos)
        << refused.message();
    EXPECT_EQ(store->version(), 1);
    EXPECT_EQ(store->log_bytes(), bytes);
    for (const auto& [name, value] : store->snapshot()->values) {
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

TEST(StoreTest, WritesReplaceStates) {
  const auto store = OpenStore();
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  Push write{{1, {-1, 1, 0}, 0, "", {"n"}, -1}, {Tensor::Scalar<int64_t>(41)}};
  ApplyOne(*store, write);
  ApplyOne(*store, SamplePush(1, {0, 1, 0}, 1));
  EXPECT_EQ(store->snapshot()->values.at("n").Item(), 42);
}

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
  EXPECT_EQ(store->session(), 3);
  EXPECT_EQ(store->version(), 5);
  EXPECT_EQ(store->definitions(), 2);
  EXPECT_EQ(Fingerprint(*store), want);
  EXPECT_EQ(store->snapshot()->values.size(), 3u);
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
  store->Fence(2, std::vector<int64_t>{5});  // another session's
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
  EXPECT_EQ(w->values<float>()[7], store->snapshot()->values.at("w/part_1").values<float>()[1]);

  // Another session, on another number of shards, begins with it.
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
  EXPECT_EQ(store->session(), 2);
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
  EXPECT_EQ(Store::Open(options).status().code(), StatusCode::kDataLoss);
  // And a segment that is gone.
  ASSERT_TRUE(RemoveFile(path).ok());
  ASSERT_TRUE(WriteFileAtomically(SegmentPath(options.folder, 2), bytes.substr(0, 8)).ok());
  store = OpenStore(options);
  EXPECT_EQ(store->version(), 0) << "the coordinator sees that, and says so";
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

// The store's session is begun anew and takes pushes, which outlive it.
void ExpectGoesOnWith(std::unique_ptr<Store> store, const StoreOptions& options,
                      const SetUpRequest& request) {
  const int64_t session = request.session;
  const Status set_up = SetUpSample(*store, session, request.restore, request.staleness_bound);
  ASSERT_TRUE(set_up.ok()) << set_up.ToString();
  EXPECT_EQ(ApplyOne(*store, SamplePush(session, {0, 1, 0}, 1)).version, 1);
  const std::string want = Fingerprint(*store);
  store.reset();
  store = OpenStore(options);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->session(), session);
  EXPECT_EQ(CountOf(*store), 1);
  EXPECT_EQ(Fingerprint(*store), want);
}

// The request comes again after 100 ms, and was told that all is well: the first push then found no
// log to be written to.
TEST(StoreTest, ASetUpThatADiskRefusedIsDoneByTheNext) {
  const SetUpRequest request{.session = 3, .staleness_bound = 0};  // shorter than a first segment
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  int refused_session = 0, refused_segment = 0, taken = 0;
  // From no byte at all to room for both files.
  for (rlim_t bytes = 0; bytes <= 128; bytes += 8) {
    SCOPED_TRACE(bytes);
    const TempFolder folder;
    const StoreOptions options{.folder = folder.path() + "/ps-0"};
    auto store = OpenStore(options);
    const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{.rlim_cur = bytes, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const Status status = store->SetUp(request);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    std::signal(SIGXFSZ, ignored);
    if (status.ok()) {
      ++taken;
    } else {
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
      ++(fs::file_size(options.folder + "/session") == 0 ? refused_session : refused_segment);
      EXPECT_EQ(store->session(), 0);
      EXPECT_EQ(store->SetUp({.session = 2}).code(), StatusCode::kFailedPrecondition)
          << "the coordinator before that one is over all the same";
    }
    ExpectGoesOnWith(std::move(store), options, request);
  }
  EXPECT_GT(refused_session, 0);
  EXPECT_GT(refused_segment, 0);
  EXPECT_GT(taken, 0);
}

// The old session was still there for its coordinator, without a log.
TEST(StoreTest, ASessionThatCouldNotBeForgottenWholeIsOver) {
  const TempFolder folder;
  const StoreOptions options{.folder = folder.path() + "/ps-0"};
  auto store = OpenStore(options);
  ASSERT_TRUE(SetUpSample(*store, 1).ok());
  const std::string no_file = SegmentPath(options.folder, 7);
  fs::create_directory(no_file);  // which no unlink removes
  const Status refused = store->SetUp({.session = 2});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find(no_file), std::string::npos) << refused.ToString();
  EXPECT_EQ(store->session(), 0);
  EXPECT_EQ(ErrorOf(*store, SamplePush(1, {0, 1, 0}, 1)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->SetUp({.session = 1}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->Define({}).code(), StatusCode::kFailedPrecondition) << "of no session";
  fs::remove(no_file);
  ExpectGoesOnWith(std::move(store), options, {.session = 2});
}

}  // namespace
}  // namespace meshtrain::parameter
