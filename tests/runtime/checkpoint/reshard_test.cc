// A checkpoint saved on one mesh loads on any other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "runtime/checkpoint/async.h"
#include "runtime/checkpoint/collect.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/runs.h"
#include "tests/runtime/checkpoint/checkpoint_testing.h"

namespace meshtrain::checkpoint {
namespace {

using mesh::Layout;
using mesh::Mesh;
using mesh::Tensor;

TEST(RunsTest, CopiesWhatBoxesShare) {
  EXPECT_EQ(CopyRuns({{0, 0}, {4, 6}}, {{1, 2}, {2, 3}}, 4),
            (std::vector<checkpoint::Run>{{32, 0, 12}, {56, 12, 12}}));
  EXPECT_EQ(CopyRuns({{0, 0}, {4, 6}}, {{1, 0}, {2, 6}}, 4),
            (std::vector<checkpoint::Run>{{24, 0, 48}}));
  EXPECT_EQ(CopyRuns({{2, 0}, {2, 6}}, {{0, 0}, {4, 6}}, 1),
            (std::vector<checkpoint::Run>{{0, 12, 12}}));
  EXPECT_EQ(CopyRuns({{0}, {4}}, {{4}, {4}}, 4), std::vector<checkpoint::Run>{});
  EXPECT_EQ(CopyRuns({}, {}, 8), (std::vector<checkpoint::Run>{{0, 0, 8}}));
}

struct Plan {
  std::string mesh;
  std::string layout;
};

// Uneven shards, several axes on a dimension, axes that hold copies.
const std::vector<Plan> kPlans = {
    {"batch=1", "{*, *}"},     {"batch=8", "{*, *}"},     {"batch=8", "{batch, *}"},
    {"batch=4", "{*, batch}"}, {"a=2,b=3", "{a, b}"},     {"a=2,b=3", "{b+a, *}"},
    {"a=2,b=3", "{*, a}"},     {"batch=8", "{*, batch}"},
};

std::vector<VariableSpec> Specs(const Plan& plan) {
  const Mesh mesh = *Mesh::Parse(plan.mesh);
  return {{"kernel", Type("f32[7,5]"), *Layout::Parse(plan.layout, mesh)},
          {"scalar", Type("i64[]"), Layout::Replicated(mesh, 0)}};
}

Tensor Global(int variable) {
  return variable == 0 ? Counting(Type("f32[7,5]")) : Tensor::Scalar<int64_t>(12);
}

Snapshot SnapshotOf(const Plan& plan) {
  const std::vector<VariableSpec> specs = Specs(plan);
  auto variables = Collect(
      specs, 0, [&](int v, int64_t rank) { return Storage(Global(v), specs[v].layout, rank); });
  EXPECT_TRUE(variables.ok()) << variables.status().ToString();
  return {.step = 1, .mesh = plan.mesh, .variables = *std::move(variables)};
}

TEST(ReshardTest, AnyMeshToAnyMesh) {
  for (const Plan& from : kPlans) {
    const TempFolder folder;
    const auto path = Save(folder.path(), SnapshotOf(from));
    ASSERT_TRUE(path.ok()) << from.mesh << from.layout << path.status().ToString();
    auto checkpoint = Checkpoint::Open(*path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    EXPECT_EQ(Bytes(*(*checkpoint)->Load("kernel")), Bytes(Global(0)));
    EXPECT_EQ((*checkpoint)->index().variables.at("kernel").layout,
              Specs(from)[0].layout.ToString());
    for (const Plan& to : kPlans) {
      const Layout layout = Specs(to)[0].layout;
      for (int64_t rank = 0; rank < layout.mesh().size(); ++rank) {
        Tensor want(mesh::TensorType{mesh::DType::kF32, *layout.LocalShape({7, 5})});
        std::memset(want.mutable_bytes().data(), 0, want.mutable_bytes().size());
        const auto slice = layout.SliceOf(rank, {7, 5});
        if (mesh::NumElements(slice.sizes) > 0) {
          want.Paste(Global(0).Slice(slice.offsets, slice.sizes), {0, 0});
        }
        const auto got = (*checkpoint)->LoadLocal("kernel", layout, rank);
        ASSERT_TRUE(got.ok()) << got.status().ToString();
        ASSERT_EQ(Bytes(*got), Bytes(want))
            << from.mesh << from.layout << " to " << to.mesh << to.layout << " rank " << rank;
      }
    }
  }
}

TEST(ReshardTest, CopiesAreWrittenOnce) {
  const TempFolder folder;
  auto checkpoint = Checkpoint::Open(*Save(folder.path(), SnapshotOf({"batch=8", "{*, *}"})));
  ASSERT_TRUE(checkpoint.ok());
  const Index& index = (*checkpoint)->index();
  ASSERT_EQ(index.variables.at("kernel").shards.size(), 1u);
  ASSERT_EQ(index.files.size(), 1u);
  EXPECT_EQ(index.files[0].bytes - index.files[0].header_bytes, 7 * 5 * 4 + 8);
}

TEST(ReshardTest, ProcessesShareTheWork) {
  // Two processes of two devices each; four equal copies of two variables: one each.
  const std::vector<mesh::Device> devices = {{.process = 0, .index = 0},
                                             {.process = 0, .index = 1},
                                             {.process = 1, .index = 0},
                                             {.process = 1, .index = 1}};
  const Mesh mesh = *Mesh::Create({{"batch", 4}}, devices);
  const std::vector<VariableSpec> specs = {
      {"a", Type("f32[100]"), Layout::Replicated(mesh, 1)},
      {"b", Type("f32[100]"), Layout::Replicated(mesh, 1)},
      {"c", Type("f32[4]"), *Layout::BatchSharded(mesh, "batch", 1)}};
  const auto assignments = AssignParts(specs);
  ASSERT_TRUE(assignments.ok());
  std::vector<int64_t> ranks;
  for (const Assignment& a : *assignments) ranks.push_back(a.rank);
  EXPECT_EQ(ranks, (std::vector<int64_t>{0, 2, 0, 1, 2, 3}));

  const TempFolder folder;
  std::vector<Index> parts;
  for (const int process : {0, 1}) {
    auto variables = Collect(specs, process, [&](int v, int64_t rank) {
      EXPECT_EQ(devices[rank].process, process);  // nobody is asked for what lives elsewhere
      return Storage(Counting(specs[v].type, v), specs[v].layout, rank);
    });
    ASSERT_TRUE(variables.ok());
    const auto part = WritePart(folder.path(), {.step = 9, .variables = *variables}, process, 2);
    ASSERT_TRUE(part.ok()) << part.status().ToString();
    parts.push_back(*part);
  }
  EXPECT_FALSE(Commit(folder.path(), {parts[0]}).ok());  // half of it is not a checkpoint
  ASSERT_TRUE(Commit(folder.path(), parts).ok());
  auto checkpoint = Checkpoint::Open(folder.At("ckpt-00000009"));
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ((*checkpoint)->index().files.size(), 2u);
  for (int v = 0; v < 3; ++v) {
    EXPECT_EQ(Bytes(*(*checkpoint)->Load(specs[v].name)), Bytes(Counting(specs[v].type, v)));
  }
  parts[1].program_hash = "another";
  EXPECT_EQ(Commit(folder.path(), parts).status().code(), StatusCode::kInvalidArgument);
}

// Two processes, each with two of four devices, save one variable that is split over all of them.
class SharedSaveTest : public ::testing::Test {
 protected:
  Snapshot PartOf(int process, float first) {
    std::vector<mesh::Device> devices;
    for (int d = 0; d < 4; ++d) devices.push_back({mesh::DeviceKind::kCpu, d / 2, d % 2});
    const Mesh mesh = *Mesh::Create({{"batch", 4}}, devices);
    const std::vector<VariableSpec> specs = {
        {"a", Type("f32[8]"), *Layout::BatchSharded(mesh, "batch", 1)}};
    Snapshot snapshot{.step = 9};
    snapshot.variables = *Collect(specs, process, [&](int, int64_t rank) {
      return Storage(Counting(specs[0].type, first), specs[0].layout, rank);
    });
    return snapshot;
  }
  Result<std::string> SavePart(int process, float first, int64_t generation,
                               Duration timeout = std::chrono::seconds(30), int64_t step = 9,
                               std::vector<std::string> replaces = {}) {
    Snapshot snapshot = PartOf(process, first);
    snapshot.step = step;
    return Save(folder_.path(), snapshot,
                {.process = process,
                 .processes = 2,
                 .generation = generation,
                 .parts_timeout = timeout,
                 .replaces = std::move(replaces)});
  }
  const TempFolder folder_;
};

TEST_F(SharedSaveTest, TheLastPartMakesItWhole) {
  Result<std::string> chief = Internal("not run");
  {
    std::jthread waits([&] { chief = SavePart(0, 5, 3); });
    ASSERT_TRUE(SavePart(1, 5, 3).ok());
  }
  ASSERT_TRUE(chief.ok()) << chief.status().message();
  auto checkpoint = Checkpoint::Open(*chief);
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(Bytes(*(*checkpoint)->Load("a")), Bytes(Counting(Type("f32[8]"), 5)));
  // Nothing but the index and the two shards is left.
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*chief)) {
    files += entry.is_regular_file();
  }
  EXPECT_EQ(files, 3);
}

TEST_F(SharedSaveTest, APartOfALostAttemptIsNotTakenForThisOne) {
  ASSERT_TRUE(SavePart(1, 100, 3).ok());  // then process 0 was lost, and with it the attempt
  const auto alone = SavePart(0, 5, 4, std::chrono::milliseconds(100));
  ASSERT_FALSE(alone.ok());
  EXPECT_EQ(alone.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(alone.status().message().find("the part of process 1 of 2"), std::string::npos)
      << alone.status().message();
  ASSERT_TRUE(SavePart(1, 5, 4).ok());
  const auto both = SavePart(0, 5, 4);
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ(Bytes(*(*Checkpoint::Open(*both))->Load("a")), Bytes(Counting(Type("f32[8]"), 5)));
}

// Process 1 may be a save ahead: its part lies where the run that is replaced has a checkpoint.
TEST_F(SharedSaveTest, WhatIsReplacedGoesWithoutThePartsOfALaterCheckpoint) {
  const auto save = [&](int64_t step, float first, int64_t generation) {
    EXPECT_TRUE(SavePart(1, first, generation, std::chrono::seconds(30), step).ok());
    return SavePart(0, first, generation, std::chrono::seconds(30), step).value();
  };
  const std::string nine = save(9, 1, 3), ten = save(10, 2, 3), old = save(20, 3, 3);
  for (const int64_t step : {9, 10}) {
    ASSERT_TRUE(SavePart(1, 5, 4, std::chrono::seconds(30), step).ok());
  }
  ASSERT_TRUE(SavePart(0, 5, 4, std::chrono::seconds(30), 9, {nine, ten, old}).ok());
  EXPECT_EQ(ListCheckpoints(folder_.path())->size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists(ten));
  ASSERT_TRUE(SavePart(0, 5, 4, std::chrono::seconds(30), 10).ok());
  for (const std::string& one : {nine, ten}) {
    EXPECT_EQ(Bytes(*(*Checkpoint::Open(one))->Load("a")), Bytes(Counting(Type("f32[8]"), 5)));
  }
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ten)) {
    files += entry.is_regular_file();
  }
  EXPECT_EQ(files, 3);
}

TEST_F(SharedSaveTest, WhatTheOthersWillNotCompleteIsAbandoned) {
  auto saver = AsyncSaver::Create(
      folder_.path(), {.process = 0, .processes = 2, .parts_timeout = std::chrono::hours(1)});
  ASSERT_TRUE(saver.ok());
  (*saver)->set_generation(7);
  ASSERT_TRUE((*saver)->Save(PartOf(0, 5)).ok());
  (*saver)->Abandon();
  EXPECT_EQ((*saver)->Wait().code(), StatusCode::kCancelled);
  // The next generation is not.
  (*saver)->set_generation(8);
  ASSERT_TRUE((*saver)->Save(PartOf(0, 5)).ok());
  ASSERT_TRUE(SavePart(1, 5, 8).ok());
  const Status saved = (*saver)->Close();
  EXPECT_TRUE(saved.ok()) << saved.message();
}

TEST_F(SharedSaveTest, ASecondSaveOfAStepWritesIntoNoFileOfTheFirst) {
  std::vector<std::unique_ptr<AsyncSaver>> savers;
  for (const int process : {0, 1}) {
    savers.push_back(*AsyncSaver::Create(folder_.path(), {.process = process, .processes = 2}));
    savers.back()->set_generation(7);
  }
  for (const int process : {1, 0}) ASSERT_TRUE(savers[process]->Save(PartOf(process, 1)).ok());
  for (const auto& saver : savers) ASSERT_EQ(saver->Wait(), OkStatus());
  // Killed before process 0 has its part of the second.
  ASSERT_TRUE(savers[1]->Save(PartOf(1, 2)).ok());
  ASSERT_EQ(savers[1]->Wait(), OkStatus());
  const auto checkpoint = Checkpoint::Open(folder_.At("ckpt-00000009"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(Bytes(*(*checkpoint)->Load("a")), Bytes(Counting(Type("f32[8]"), 1)));
  ASSERT_TRUE(savers[0]->Save(PartOf(0, 2)).ok());
  ASSERT_EQ(savers[0]->Wait(), OkStatus());
  EXPECT_EQ(Bytes(*(*Checkpoint::Open(folder_.At("ckpt-00000009")))->Load("a")),
            Bytes(Counting(Type("f32[8]"), 2)));
}

TEST(ReshardTest, RefusesPendingSums) {
  const Mesh mesh = *Mesh::Parse("batch=2");
  const Layout pending = *Layout::Parse("{*} sum(batch)", mesh);
  const std::vector<VariableSpec> specs = {{"a", Type("f32[4]"), pending}};
  EXPECT_EQ(AssignParts(specs).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace meshtrain::checkpoint
