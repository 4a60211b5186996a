// Checkpoints of a coordinator's job: cuts between steps, and jobs that go on from them, under
// another strategy too.
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/checkpoint/save.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/parameter/server/log_file.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "tests/runtime/parameter/chief/coordinator_testing.h"
#include "tests/runtime/parameter/cluster_testing.h"
#include "tests/runtime/parameter/full_disk.h"
#include "tests/runtime/parameter/jobs_testing.h"
#include "tests/runtime/parameter/must.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::parameter {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using program::Builder;
using std::chrono::seconds;
using testing_folder::TempFolder;

// What a program had saved for itself became all that the log went on from.
TEST(CoordinatorTest, AServersLogDoesNotLeanOnWhatAProgramSavesElsewhere) {
  const TempFolder folder;
  TestCluster cluster(1, 1, folder.path());
  CoordinatorOptions options = cluster.options();
  options.checkpoint_folder = folder.path() + "/checkpoints";
  const auto coordinator = Connect(options);
  const std::vector<Parameter> variables = {Counter()};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  const Function count = Must(coordinator->DefineFunction(CountStep()));
  const auto run = [&] {
    ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
    const Status joined = coordinator->Join({}, seconds(60));
    ASSERT_TRUE(joined.ok()) << joined.ToString();
  };
  const auto segments = [&] { return Must(ListSegments(folder.path() + "/ps-0")); };
  run();
  ASSERT_TRUE(coordinator->Save(7).ok());
  ASSERT_TRUE(coordinator->WaitForSave().ok());
  const auto cut = segments();
  ASSERT_EQ(cut.size(), 1u);
  EXPECT_EQ(cut[0].number, 2);
  run();
  const std::string elsewhere = folder.path() + "/mine";
  ASSERT_TRUE(coordinator->SaveTo(elsewhere, 7).ok());
  ASSERT_TRUE(coordinator->WaitForSave().ok());
  EXPECT_EQ(segments(), cut);
  run();
  std::filesystem::remove_all(elsewhere);
  cluster.StopServer(0);
  cluster.StartServer(0);
  run();
  EXPECT_EQ(Must(coordinator->Read("n")).Item(), 4);
}

// The server was asked again, for a copy that it had no more, and so taken for one that came back
// without it: every checkpoint was given up for the next one, and nobody heard of the disk.
TEST(CoordinatorTest, AServerWithoutRoomForACheckpointIsTold) {
  const TempFolder folder;
  TestCluster cluster(1, 1, folder.path());
  CoordinatorOptions options = cluster.options();
  options.checkpoint_folder = folder.path() + "/checkpoints";
  const auto coordinator = Connect(options);
  const std::vector<Parameter> variables = {Parameter(
      "v", TensorType{DType::kI64, {4096}}, nn::Initializer::Zeros(), {.trainable = false})};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  {
    const FullDisk disk(16384);  // the log has room
    const Status begun = coordinator->Save(1);
    ASSERT_TRUE(begun.ok()) << begun.ToString();
    const Status next = coordinator->Save(2);
    EXPECT_EQ(next.code(), StatusCode::kResourceExhausted) << next.ToString();
    EXPECT_EQ(next.origin(), Origin::kOutput);
    EXPECT_NE(next.message().find("ps-0: "), std::string::npos) << next.message();
    EXPECT_NE(next.message().find("File too large"), std::string::npos) << next.message();
  }
  EXPECT_EQ(coordinator->failed_saves(), 1);
  EXPECT_EQ(coordinator->last_saved(), -1);
  // Whoever makes room may go on.
  ASSERT_TRUE(coordinator->Save(3).ok());
  ASSERT_TRUE(coordinator->WaitForSave().ok());
  EXPECT_EQ(coordinator->last_saved(), 3);
}

TEST(CoordinatorTest, ACheckpointIsACutBetweenSteps) {
  const TempFolder folder;
  TestCluster cluster(2, 3, folder.path());
  CoordinatorOptions options = cluster.options();
  options.partitioner = FixedShards{2};
  options.checkpoint_folder = folder.path() + "/checkpoints";
  options.steps_in_flight = 2;
  const auto coordinator = Connect(options);
  // Every step adds 1 to each element, on both servers, and to a count.
  const Parameter v("v", TensorType{DType::kI64, {64, 3}}, nn::Initializer::Zeros());
  const std::vector<Parameter> variables = {v, Counter()};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  Builder b("count");
  {
    Builder::Scope scope(b);
    program::AssignAdd(v, program::Ones({64, 3}, DType::kI64));
    program::AssignAdd(variables[1], 1);
  }
  const Function count = Must(coordinator->DefineFunction(b.Build().value()));
  for (int save = 1; save <= 5; ++save) {
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
    const Status saved = coordinator->Save(save, {{"epoch", "1"}});
    ASSERT_TRUE(saved.ok()) << saved.ToString();
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
  }
  ASSERT_TRUE(coordinator->Join({}, seconds(60)).ok());
  ASSERT_TRUE(coordinator->WaitForSave().ok());
  EXPECT_EQ(coordinator->last_saved(), 5);
  const auto candidates = Must(checkpoint::ListCheckpoints(options.checkpoint_folder));
  ASSERT_EQ(candidates.size(), 5u);
  for (const auto& candidate : candidates) {
    const auto checkpoint = Must(checkpoint::Checkpoint::Open(candidate.path));
    ASSERT_TRUE(checkpoint->Verify().ok());
    EXPECT_EQ(checkpoint->index().metadata.at("epoch"), "1");
    const double n = Must(checkpoint->Load("n")).Item();
    const Tensor all = Must(checkpoint->Load("v"));
    for (const int64_t element : all.values<int64_t>()) ASSERT_EQ(static_cast<double>(element), n);
  }
}

TEST(CoordinatorTest, AJobGoesOnFromItsCheckpointAndAMeshWithIt) {
  const TempFolder folder;
  const BatchTypes types[] = {{F32({50, 28, 28}), {DType::kI32, {50}}}};
  const auto recipe = [] {
    return DigitsRecipe(train::Adam({.common = {.learning_rate = 0.002}}));
  };
  const std::vector<double> want =
      Must(TrainAlone(recipe(), DigitsData(50), types[0][0], types[0][1], 20));
  TestCluster cluster(2, 1, folder.path());
  CoordinatorOptions options = cluster.options();
  options.seed = 11;
  options.checkpoint_folder = folder.path() + "/checkpoints";
  const auto train = [&](Coordinator& coordinator, size_t from, size_t to) {
    const Training training = Must(coordinator.DefineTraining(recipe(), types));
    const PerWorker data = Must(coordinator.CreatePerWorkerDataset("train", DigitsData(50)));
    for (size_t i = from; i < to; ++i) {
      const Outputs outputs = Must(
          coordinator.Fetch(Must(coordinator.Schedule(training.step, {data})), {}, seconds(60)));
      ASSERT_NEAR(LossOf(outputs), want[i], 1e-6) << "step " << i;
    }
  };
  {
    options.partitioner = FixedShards{3};
    const auto coordinator = Connect(options);
    train(*coordinator, 0, 10);
    ASSERT_TRUE(coordinator->Save(10).ok());
    ASSERT_TRUE(coordinator->WaitForSave().ok());
  }
  const std::string path = checkpoint::CheckpointFolder(options.checkpoint_folder, 10);
  {
    // Other shards on the same servers; the dataset goes on where it was.
    options.partitioner = Whole{};
    options.restore = path;
    const auto coordinator = Connect(options);
    train(*coordinator, 10, 20);
  }
  // A mesh reads the very same names and types.
  const auto saved = Must(checkpoint::Checkpoint::Open(path));
  const train::Programs programs = Must(train::BuildPrograms(recipe(), types[0][0], types[0][1]));
  const mesh::Mesh mesh = mesh::Mesh::Parse("batch=2,model=2").value();
  for (const Parameter& p : programs.States()) {
    const auto value =
        saved->LoadLocal(p.name(), mesh::Layout::Replicated(mesh, p.type().rank()), 3);
    ASSERT_TRUE(value.ok()) << value.status().ToString();
    EXPECT_EQ(value->type(), p.type()) << p.name();
  }
  EXPECT_EQ(saved->index().variables.size(), programs.States().size());
}

TEST(CoordinatorTest, AMeshsCheckpointBeginsTheServers) {
  const TempFolder folder;
  const BatchTypes types[] = {{F32({50, 28, 28}), {DType::kI32, {50}}}};
  const auto recipe = [] {
    return DigitsRecipe(train::Adam({.common = {.learning_rate = 0.002}}));
  };
  const std::vector<double> want =
      Must(TrainAlone(recipe(), DigitsData(50, 2000, false), types[0][0], types[0][1], 12));
  std::map<std::string, Tensor> states;
  ASSERT_TRUE(
      TrainAlone(recipe(), DigitsData(50, 2000, false), types[0][0], types[0][1], 8, &states).ok());
  checkpoint::Snapshot snapshot{.step = 8};
  for (const auto& [name, value] : states) {
    // Cut otherwise than the servers do.
    checkpoint::SavedVariable variable{name, value.type(), "", {}};
    if (value.dims().size() == 2) {
      const int64_t half = value.dims()[1] / 2;
      variable.blocks.push_back({{0, 0}, value.Slice({0, 0}, {value.dims()[0], half})});
      variable.blocks.push_back(
          {{0, half}, value.Slice({0, half}, {value.dims()[0], value.dims()[1] - half})});
    } else {
      variable.blocks.push_back({mesh::Dims(value.dims().size(), 0), value});
    }
    snapshot.variables.push_back(std::move(variable));
  }
  TestCluster cluster(2, 1, folder.path());
  CoordinatorOptions options = cluster.options();
  options.partitioner = FixedShards{2};
  options.restore = Must(checkpoint::Save(folder.path() + "/checkpoints", snapshot));
  const auto coordinator = Connect(options);
  const Training training = Must(coordinator->DefineTraining(recipe(), types));
  const PerWorker data =
      Must(coordinator->CreatePerWorkerDataset("train", DigitsData(50, 2000, false)));
  for (int skip = 0; skip < 8; ++skip) {
    ASSERT_TRUE(coordinator->Fetch(Must(coordinator->Schedule(training.evaluate, {data}))).ok());
  }
  for (size_t i = 8; i < 12; ++i) {
    const Outputs outputs =
        Must(coordinator->Fetch(Must(coordinator->Schedule(training.step, {data}))));
    ASSERT_NEAR(LossOf(outputs), want[i], 1e-6) << "step " << i;
  }
}

}  // namespace
}  // namespace meshtrain::parameter
