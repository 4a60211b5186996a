// Every message comes back as it went, and rubbish is an error, never a crash.
#include "runtime/parameter/messages/messages.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "tests/runtime/parameter/seed.h"

namespace meshtrain::parameter {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;

// Equal bytes stand for equal values: encoding is one to one, and a field that got lost would show.
template <typename T>
T RoundTrip(const T& message) {
  const std::string bytes = Encode(message);
  const auto back = Decode<T>(bytes);
  EXPECT_TRUE(back.ok()) << back.status().ToString();
  if (!back.ok()) return message;
  EXPECT_EQ(Encode(*back), bytes);
  return *back;
}

Program SampleProgram() {
  program::Builder b("p");
  program::Builder::Scope scope(b);
  const program::Variable w("w", TensorType{DType::kF32, {2}});
  b.Output("y", b.Input("x", {DType::kF32, {2}}) * w);
  return b.Build().value();
}

TEST(MessagesTest, ServerMessagesComeBack) {
  EXPECT_EQ(RoundTrip(SetUpRequest{7, 1, 3, "/c/ckpt-1", 4}),
            (SetUpRequest{7, 1, 3, "/c/ckpt-1", 4}));
  const ServerState state{
      "w/part_1", {DType::kF32, {2, 3}}, "w", {DType::kF32, {5, 3}}, {3, 0}, true, false, true};
  const ServerState copy{"c", {DType::kI64, {}}, "c", {DType::kI64, {}}, {}, false, true, false};
  const DefineRequest define = RoundTrip(
      DefineRequest{7, 2, {{state, copy}, SampleProgram(), {{"train", SampleProgram()}}}});
  EXPECT_EQ(define.definition.states, (std::vector<ServerState>{state, copy}));
  EXPECT_EQ(define.definition.updates[0].program.ToString(), SampleProgram().ToString());
  const PushRequest push = RoundTrip(PushRequest{7, {-1, 2, 3}, 1, "train", {"a", "b"}, 9});
  EXPECT_EQ(push.id, (PushId{-1, 2, 3}));
  EXPECT_EQ(push.names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(push.based_on, 9);
  EXPECT_TRUE(RoundTrip(PushReply{5, true}).repeated_push);
  EXPECT_EQ(RoundTrip(PushReply{5, false, 6, {{DType::kF32, {2}}}}).types.size(), 1u);
  EXPECT_EQ(RoundTrip(PushRequest{.want = {"w"}}).want, (std::vector<std::string>{"w"}));
  EXPECT_EQ(RoundTrip(PullRequest{7, {"a"}, 3, -1}).have_version, -1);
  EXPECT_EQ(RoundTrip(PullReply{4, false, {{DType::kF64, {2}}}}).types[0],
            (TensorType{DType::kF64, {2}}));
  EXPECT_EQ(RoundTrip(ReadRequest{7, {"a"}}).names[0], "a");
  EXPECT_EQ(RoundTrip(ReadReply{3, {{DType::kBool, {}}}}).version, 3);
  EXPECT_EQ(RoundTrip(CutRequest{7, 30, "/c", {1, 2}}).folder, "/c");
  EXPECT_EQ(RoundTrip(CutRequest{7, 30, "/c", {1, 2}}).incarnations, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(RoundTrip(CutReply{12}).version, 12);
  EXPECT_EQ(RoundTrip(WriteRequest{7, 30, "hash", {{"epoch", "2"}}}).metadata.at("epoch"), "2");
  EXPECT_EQ(RoundTrip(WriteReply{"{}"}).index, "{}");
  EXPECT_EQ(RoundTrip(CommittedRequest{7, 30}).step, 30);
  EXPECT_EQ(RoundTrip(EndRequest{7}).term, 7);
  const PingRequest ping = RoundTrip(PingRequest{{"ps-1", "worker-3"}, 7, {1, 4}});
  EXPECT_EQ(ping.lost, (std::vector<std::string>{"ps-1", "worker-3"}));
  EXPECT_EQ(ping.term, 7);
  EXPECT_EQ(ping.incarnations, (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(RoundTrip(ServerPingReply{7, 1, 2, 3, 4}).log_bytes, 4);
  const LogRecord base = Base{7,  3,    {{0, 1, 5, {7, 9}}, {-1, 1, 0, {}}}, 2, true,
                              40, "/c", {{"n", {DType::kI64, {}}}}};
  EXPECT_EQ(std::get<Base>(RoundTrip(base)).seen[0].seqs, (std::vector<int64_t>{7, 9}));
  EXPECT_EQ(
      std::get<LoggedPush>(RoundTrip(LogRecord(LoggedPush{4, {0, 1, 2}, 2, "u", {"n"}}))).version,
      4);
}

TEST(MessagesTest, WorkerMessagesComeBack) {
  StepFunction function{"step",
                        SampleProgram(),
                        1,
                        {"loss"},
                        {{{1, "w/part_0", 0, {DType::kF32, {2}}}}},
                        {{1, "train", {{2, 3, {DType::kF32, {4, 5}}}}}}};
  Dataset idx{"idx",
              {{data::IdxFiles{"a.gz", "b.gz", DType::kI64}, 100, 3, 5}, {}},
              ShardPolicy::kByElement};
  idx.spec.stages = {data::MapStage{{data::Scale{0.5}, data::Normalize{{1, 3}, {2}},
                                     data::Cast{DType::kF64}, data::RandomFlip{false, true},
                                     data::RandomCrop{{3, 4, 5}}, data::CenterCrop{{6, 7, 8}}},
                                    1,
                                    uint64_t{1} << 63},
                     data::CacheStage{},
                     data::ShuffleStage{10, 3, false},
                     data::BatchStage{4, true},
                     data::RepeatStage{2},
                     data::PrefetchStage{3}};
  const Tensor one = Tensor::Of<float>({2, 1}, std::vector<float>{1, 2});
  const Dataset arrays{"arrays",
                       {{data::MemoryArrays{{one, one}, "part"}, -1},
                        {data::BatchStage{1}},
                        {{"y", 10}, {"odd", 2}},
                        "y",
                        {{"x", 7}}},
                       ShardPolicy::kWhole};
  const WorkerValue value{"v", Tensor::Scalar<int32_t>(9)};
  const WorkerSetUpRequest request{
      7, 1, 2, 3, {"a:1", "b:2"}, {function, idx, arrays, value}, {{1, "epoch=0"}}};
  WorkerSetUpRequest back = RoundTrip(request);
  ASSERT_EQ(back.entries.size(), 4u);
  EXPECT_EQ(std::get<Dataset>(back.entries[1]).spec.stages.size(), 6u);
  EXPECT_EQ(std::get<Dataset>(back.entries[1]).spec.source.take, 100);
  EXPECT_EQ(std::get<Dataset>(back.entries[1]).spec.source.first, 3);
  EXPECT_EQ(std::get<Dataset>(back.entries[1]).spec.source.every, 5);
  const auto& map = std::get<data::MapStage>(std::get<Dataset>(back.entries[1]).spec.stages[0]);
  EXPECT_EQ(map.seed, uint64_t{1} << 63);
  EXPECT_TRUE(std::get<data::RandomFlip>(map.ops[3]).vertical);
  EXPECT_FALSE(std::get<data::RandomFlip>(map.ops[3]).horizontal);
  EXPECT_EQ(std::get<data::RandomCrop>(map.ops[4]).window.padding, 5);
  EXPECT_EQ(std::get<data::CenterCrop>(map.ops[5]).window.height, 6);
  EXPECT_EQ(std::get<StepFunction>(back.entries[0]).pushes[0].parts[0].row, 3);
  ASSERT_TRUE(FillEntries(EntriesPayload(request.entries), &back.entries).ok());
  EXPECT_EQ(std::get<WorkerValue>(back.entries[3]).value.Item(), 9);
  const auto& filled =
      std::get<data::MemoryArrays>(std::get<Dataset>(back.entries[2]).spec.source.from);
  EXPECT_EQ(filled.components[1].values<float>()[1], 2.0f);
  EXPECT_EQ(filled.file, "part");
  EXPECT_EQ(std::get<Dataset>(back.entries[2]).spec.classes,
            (std::map<std::string, int64_t>{{"y", 10}, {"odd", 2}}));
  EXPECT_EQ(std::get<Dataset>(back.entries[2]).spec.rows.at("x"), 7);
  EXPECT_TRUE(std::get<Dataset>(back.entries[1]).spec.classes.empty());
  EXPECT_FALSE(FillEntries({}, &back.entries).ok());
  EXPECT_FALSE(FillEntries({one, one, one, one}, &back.entries).ok());

  for (const std::optional<DType> labels_as :
       {std::optional<DType>(), std::optional(DType::kI64)}) {
    idx.spec.source.from = data::IdxFiles{"a.gz", "b.gz", labels_as};
    const LoadRequest load = RoundTrip(LoadRequest{7, 3, 2, {idx}, {}});
    const auto& files =
        std::get<data::IdxFiles>(std::get<Dataset>(load.entries[0]).spec.source.from);
    EXPECT_EQ(files.labels_as, labels_as);
    idx.spec.source.from = data::NpyFiles{"a.npy", "b.npy", labels_as, {{"odd", "c.npy"}}};
    const LoadRequest npy = RoundTrip(LoadRequest{7, 3, 2, {idx}, {}});
    const auto& arrays_of =
        std::get<data::NpyFiles>(std::get<Dataset>(npy.entries[0]).spec.source.from);
    EXPECT_EQ(arrays_of.images + arrays_of.labels, "a.npyb.npy");
    ASSERT_EQ(arrays_of.more.size(), 1u);
    EXPECT_EQ(arrays_of.more[0].name + arrays_of.more[0].file, "oddc.npy");
    EXPECT_EQ(arrays_of.labels_as, labels_as);
  }
  idx.spec.source.from = data::ImageFolder{"images", 4};
  const LoadRequest pictures = RoundTrip(LoadRequest{7, 3, 2, {idx}, {}});
  const auto& folder =
      std::get<data::ImageFolder>(std::get<Dataset>(pictures.entries[0]).spec.source.from);
  EXPECT_EQ(folder.folder, "images");
  EXPECT_EQ(folder.channels, 4);

  EXPECT_EQ(RoundTrip(WorkerSetUpReply{5}).boot, 5u);
  EXPECT_EQ(RoundTrip(LoadRequest{7, 3, 2, {value}, {{2, "c"}}}).cursors[0].cursor, "c");
  const RunRequest run{7,
                       3,
                       11,
                       {0, 4},
                       {{RunArgument::Kind::kDataset, 1, {}},
                        {RunArgument::Kind::kValue, 2, {}},
                        {RunArgument::Kind::kTensor, 0, {DType::kF32, {3}}}},
                       {1, -1},
                       500};
  EXPECT_EQ(RoundTrip(run).arguments, run.arguments);
  EXPECT_EQ(RoundTrip(run).functions, run.functions);
  RunReply reply{Unavailable("away").From(Origin::kPeers),
                 RunReply::Cause::kServerAway,
                 1,
                 {{"loss", {DType::kF32, {}}}},
                 {3, -1},
                 {{1, "c"}},
                 10,
                 20};
  const RunReply got = RoundTrip(reply);
  EXPECT_EQ(got.status, reply.status);
  EXPECT_EQ(got.cause, reply.cause);
  EXPECT_EQ(got.outputs, reply.outputs);
  EXPECT_EQ(got.versions, reply.versions);
  EXPECT_EQ(RoundTrip(WorkerPingReply{7, 3, 5}).incarnation, 3);
}

// The worker's own trouble is a peer's to the chief; what is wrong for every worker stays what it
// is.
TEST(MessagesTest, AStepsErrorKeepsItsOriginWhereItIsNotTheWorkers) {
  const auto told = [](const Status& status) {
    const auto reply = Decode<RunReply>(
        Encode(RunReply{.status = status, .outputs = {}, .versions = {}, .cursors = {}}));
    return reply.ok() ? reply->status : Internal("no message: " + reply.status().message());
  };
  EXPECT_EQ(told(OkStatus()).origin(), std::nullopt);
  EXPECT_EQ(told(Internal("x")).origin(), Origin::kPeers);
  EXPECT_EQ(told(Internal("x").From(Origin::kOurs)).origin(), Origin::kPeers);
  EXPECT_EQ(told(Unavailable("x").From(Origin::kPeers)).origin(), Origin::kPeers);
  EXPECT_EQ(told(Cancelled("x").From(Origin::kStop)).origin(), Origin::kPeers);
  for (const Origin origin :
       {Origin::kManifest, Origin::kInput, Origin::kOutput, Origin::kNumbers}) {
    EXPECT_EQ(told(DataLoss("x").From(origin)), DataLoss("x"));
    EXPECT_EQ(told(DataLoss("x").From(origin)).origin(), origin);
  }
}

TEST(MessagesPropertyTest, RubbishIsAnError) {
  const uint64_t seed = testing_seed::FromEnvironment();
  const std::string good = Encode(WorkerSetUpRequest{
      7,
      1,
      2,
      3,
      {"a:1"},
      {StepFunction{"s", SampleProgram(), 1, {}, {{}}, {}}, WorkerValue{"v", Tensor::Scalar(1.0f)}},
      {}});
  for (uint64_t s = seed; s < seed + 3000; ++s) {
    std::mt19937_64 random(s);
    std::string bytes = good;
    for (uint64_t n = 1 + random() % 4; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 3 == 0) bytes.resize(random() % bytes.size());
    // A value whose type was made huge is refused before anything is allocated for it.
    const auto got = Decode<WorkerSetUpRequest>(bytes);
    if (got.ok()) continue;
    EXPECT_EQ(got.status().code(), StatusCode::kInvalidArgument) << "MT_TEST_SEED=" << s;
  }
  EXPECT_FALSE(Decode<LogRecord>("").ok());
  EXPECT_FALSE(Decode<PushRequest>("\xff\xff").ok());
}

}  // namespace
}  // namespace meshtrain::parameter
