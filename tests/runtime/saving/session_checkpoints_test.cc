// Variables of a session, saved and loaded: by one process or several, on one mesh or another.
#include "runtime/saving/session_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>

#include "runtime/base/check.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/save.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/data/cursor.h"
#include "runtime/data/pipeline.h"
#include "runtime/membership/join_team.h"
#include "tests/runtime/membership/membership_testing.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::saving {
namespace {

using mesh::DType;
using mesh::Layout;
using mesh::Mesh;
using mesh::Tensor;
using program::Variable;
using ::testing::HasSubstr;
using testing_folder::TempFolder;

// A kernel that its mesh's last axis splits (unevenly, on some), its bias and a count of steps.
struct Model {
  std::vector<Variable> variables = {Variable("kernel", {DType::kF32, {6, 4}}),
                                     Variable("bias", {DType::kF32, {4}}),
                                     Variable("steps", {DType::kF64, {}}, false)};
  Mesh mesh;
  std::unique_ptr<execute::Session> session;

  explicit Model(const Mesh& on, execute::SessionOptions options = {}) : mesh(on) {
    session = execute::Session::Create(std::move(options)).value();
    for (const Variable& v : variables) {
      Layout layout = Layout::Replicated(mesh, v.type().rank());
      if (v.type().rank() == 2) layout = layout.WithDim(0, {mesh.num_axes() - 1});
      MT_CHECK(session->Declare(v, layout).ok());
    }
  }
  // Numbers that are all different, from `first`.
  Status Fill(float first) {
    std::vector<float> values(24);
    std::iota(values.begin(), values.end(), first);
    MT_RETURN_IF_ERROR(session->Write(variables[0], Tensor::Of<float>({6, 4}, values)));
    values.resize(4);
    MT_RETURN_IF_ERROR(session->Write(variables[1], Tensor::Of<float>({4}, values)));
    return session->Write(variables[2], Tensor::Scalar(static_cast<double>(first)));
  }
  // Whether they are what Fill(first) gives; with several processes, all call it.
  Status Check(float first) {
    for (size_t i = 0; i < variables.size(); ++i) {
      MT_ASSIGN_OR_RETURN(const Tensor value, session->ReadToHost(variables[i]));
      const bool right = i == 2 ? value.Item() == static_cast<double>(first) : [&] {
        const auto got = value.values<float>();
        for (size_t k = 0; k < got.size(); ++k) {
          if (got[k] != first + static_cast<float>(k)) return false;
        }
        return !got.empty();
      }();
      if (!right)
        return Internal(variables[i].name() + ": got others than from " + std::to_string(first));
    }
    return OkStatus();
  }
};

std::unique_ptr<data::Pipeline> TenNumbers() {
  const Tensor x = Tensor::Of<float>({10}, std::vector<float>(10, 1));
  return data::Pipeline::Create(
             {.source = {data::MemoryArrays{{x}}}, .stages = {data::BatchStage{1}}})
      .value();
}

std::unique_ptr<SessionCheckpoints> Open(Model& model, const std::string& folder,
                                         membership::Team* team = nullptr,
                                         data::Pipeline* data = nullptr) {
  return SessionCheckpoints::Create(*model.session, model.variables,
                                    {.folder = folder, .team = team, .data = data})
      .value();
}

Mesh On(const std::string& text, int processes = 1) {
  return Mesh::Parse(text).value().OverProcesses(processes).value();
}

// Changes the last byte of the shard files of a checkpoint whose names hold `which`; the last one's
// path.
std::string Damage(const std::string& folder, int64_t step, const std::string& which = "shard") {
  std::string damaged;
  for (const auto& file :
       std::filesystem::directory_iterator(checkpoint::CheckpointFolder(folder, step))) {
    const std::string path = file.path().string();
    if (path.find(which) == std::string::npos || !path.ends_with(".safetensors")) continue;
    std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(-1, std::ios::end);
    const auto last = static_cast<char>(f.get());
    f.seekp(-1, std::ios::end);
    f.put(static_cast<char>(last ^ 1));
    damaged = path;
  }
  EXPECT_NE(damaged, "");
  return damaged;
}

TEST(SessionCheckpointsTest, AFolderThatVanishesIsSaidAndNotMadeAgain) {
  const TempFolder folder;
  const std::string saved = folder.path() + "/saved";
  Model model(On("model=2"));
  ASSERT_TRUE(model.Fill(1).ok());
  const auto checkpoints = Open(model, saved);
  ASSERT_TRUE(checkpoints->Save({.step = 1}).ok());
  std::filesystem::remove_all(saved);
  const Status status = checkpoints->Save({.step = 2});
  EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.ToString();
  EXPECT_TRUE(status.message().starts_with("saving step 2: " + saved +
                                           ": expected the folder of checkpoints to stay"))
      << status.message();
  EXPECT_FALSE(std::filesystem::exists(saved));
}

TEST(SessionCheckpointsTest, WhatWasSavedOnOneMeshIsLoadedOnEvery) {
  for (const bool isolated : {false, true}) {
    const TempFolder folder;
    Model saved(On("batch=4"), {.isolated = isolated});  // shards of 2, 2, 2 and 0 rows
    ASSERT_TRUE(saved.Fill(10).ok());
    const train::Position position{
        .step = 7, .epoch = 2, .batch = 3, .figures = {{{"loss", 0.1}}, 24}};
    const auto batches = TenNumbers();
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(batches->Next().ok());
    const Status ended = Open(saved, folder.path(), nullptr, batches.get())->Save(position);
    ASSERT_TRUE(ended.ok()) << ended.ToString();
    for (const char* mesh : {"batch=4", "batch=2,model=3", "model=1"}) {
      SCOPED_TRACE(mesh);
      Model loaded(On(mesh), {.isolated = isolated});
      const auto goes_on = TenNumbers();
      const auto restored = Open(loaded, folder.path(), nullptr, goes_on.get())->Restore();
      ASSERT_TRUE(restored.ok()) << restored.status().ToString();
      ASSERT_TRUE(restored->has_value());
      EXPECT_EQ((*restored)->position.step, 7);
      EXPECT_EQ((*restored)->position.epoch, 2);
      EXPECT_EQ((*restored)->position.batch, 3);
      EXPECT_EQ((*restored)->position.figures, position.figures);
      EXPECT_EQ(goes_on->cursor(), batches->cursor());
      EXPECT_EQ((*restored)->path, checkpoint::CheckpointFolder(folder.path(), 7));
      EXPECT_EQ(loaded.Check(10), OkStatus());
    }
  }
}

TEST(SessionCheckpointsTest, AnEmptyFolderLeavesTheVariablesAsTheyAre) {
  const TempFolder folder;
  Model model(On("batch=2"));
  ASSERT_TRUE(model.Fill(3).ok());
  const auto checkpoints = Open(model, folder.path() + "/made/for/it");
  EXPECT_TRUE(std::filesystem::is_directory(folder.path() + "/made/for/it"));
  const auto restored = checkpoints->Restore();
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_FALSE(restored->has_value());
  EXPECT_EQ(model.Check(3), OkStatus());
}

TEST(SessionCheckpointsTest, KeepsTheNewest) {
  const TempFolder folder;
  Model model(On("batch=2"));
  const auto checkpoints = SessionCheckpoints::Create(*model.session, model.variables,
                                                      {.folder = folder.path(), .keep = 2})
                               .value();
  for (int step = 1; step <= 4; ++step) {
    ASSERT_TRUE(model.Fill(static_cast<float>(step)).ok());
    ASSERT_TRUE(checkpoints->Save({.step = step}).ok());
  }
  const auto left = checkpoint::ListCheckpoints(folder.path()).value();
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[1].step, 3);
  const auto restored = checkpoints->Restore();
  ASSERT_TRUE(restored.ok() && restored->has_value());
  EXPECT_EQ(model.Check(4), OkStatus());
}

TEST(SessionCheckpointsTest, ADamagedOneIsNamedAndTheOneBeforeTaken) {
  const TempFolder folder;
  Model model(On("batch=2"));
  const auto checkpoints = Open(model, folder.path());
  for (int step = 1; step <= 2; ++step) {
    ASSERT_TRUE(model.Fill(static_cast<float>(step)).ok());
    ASSERT_TRUE(checkpoints->Save({.step = step}).ok());
  }
  Damage(folder.path(), 2);
  const auto restored = checkpoints->Restore();
  ASSERT_TRUE(restored.ok() && restored->has_value()) << restored.status().ToString();
  EXPECT_EQ((*restored)->position.step, 1);
  EXPECT_EQ(model.Check(1), OkStatus());

  ASSERT_TRUE(model.Fill(50).ok());
  const std::string file = Damage(folder.path(), 1);
  const Status none = checkpoints->Restore().status();
  EXPECT_EQ(none.code(), StatusCode::kDataLoss);
  EXPECT_THAT(none.message(), HasSubstr("no whole checkpoint is left: " + file + ": bytes "));
  EXPECT_EQ(model.Check(50), OkStatus());  // as it was
}

TEST(SessionCheckpointsTest, OneThatDoesNotSayWhereItsDataStoodIsRefused) {
  const TempFolder folder;
  Model model(On("batch=2"));
  const auto data = TenNumbers();
  const auto restore = [&](bool anew) {
    return SessionCheckpoints::Create(
               *model.session, model.variables,
               {.folder = folder.path(), .data = data.get(), .data_may_begin_anew = anew})
        .value()
        ->Restore();
  };
  ASSERT_TRUE(model.Fill(1).ok());
  ASSERT_TRUE(Open(model, folder.path())->Save({.step = 0}).ok());
  EXPECT_TRUE(restore(false).ok());  // it began nowhere else
  ASSERT_TRUE(Open(model, folder.path())->Save({.step = 2, .batch = 2}).ok());
  ASSERT_TRUE(model.Fill(50).ok());
  EXPECT_EQ(
      restore(false).status(),
      FailedPrecondition(checkpoint::CheckpointFolder(folder.path(), 2) +
                         ": expected a checkpoint that says where its data stood, got: one of "
                         "step 2 that was saved without data"));
  EXPECT_EQ(model.Check(50), OkStatus());  // as it was
  EXPECT_TRUE(restore(true).ok());
  EXPECT_EQ(model.Check(1), OkStatus());
  EXPECT_TRUE(Open(model, folder.path())->Restore().ok());
}

TEST(SessionCheckpointsTest, AVariableThatDoesNotFitIsNamed) {
  const TempFolder folder;
  Model model(On("batch=2"));
  ASSERT_TRUE(model.Fill(1).ok());
  const auto save = [&](std::vector<Variable> variables, int64_t step) {
    return SessionCheckpoints::Create(*model.session, std::move(variables),
                                      {.folder = folder.path()})
        .value()
        ->Save({.step = step});
  };
  ASSERT_TRUE(save({model.variables[0], model.variables[2]}, 5).ok());
  ASSERT_TRUE(model.Fill(2).ok());
  const auto checkpoints = Open(model, folder.path());
  const Status missing = checkpoints->Restore().status();
  EXPECT_EQ(missing,
            InvalidArgument(checkpoint::CheckpointFolder(folder.path(), 5) +
                            ": it is of another model: `bias`: expected f32[4], got: no such "
                            "variable"));
  EXPECT_EQ(model.Check(2), OkStatus());  // none was changed

  const Variable wider("bias", {DType::kF32, {5}});
  ASSERT_TRUE(model.session->Declare(wider, Layout::Replicated(model.mesh, 1)).ok());
  ASSERT_TRUE(save({model.variables[0], wider, model.variables[2]}, 6).ok());
  EXPECT_EQ(checkpoints->Restore().status(),
            InvalidArgument(checkpoint::CheckpointFolder(folder.path(), 6) +
                            ": it is of another model: `bias`: expected f32[4], got: f32[5]"));
  EXPECT_EQ(model.Check(2), OkStatus());
}

TEST(SessionCheckpointsTest, Refusals) {
  const TempFolder folder;
  Model model(On("batch=2"));
  const auto create = [&](std::vector<Variable> variables, const std::string& path) {
    return SessionCheckpoints::Create(*model.session, std::move(variables), {.folder = path})
        .status();
  };
  EXPECT_EQ(create({}, "f"), InvalidArgument("f: expected variables to save, got: none"));
  EXPECT_EQ(create({model.variables[1], Variable("bias", {DType::kF32, {2}})}, "f"),
            InvalidArgument("f: expected variables of different names, got two: bias"));
  // Where a file lies, whoever asks: no folder can be made below it, nor written to later.
  const std::string file = folder.path() + "/file";
  std::ofstream(file) << "x";
  const Status below = create(model.variables, file + "/checkpoints");
  EXPECT_EQ(cluster::ExitCodeOf(below), cluster::kExitCannotCreate) << below.ToString();
  EXPECT_THAT(below.message(), HasSubstr(file));
  const std::string gone = folder.path() + "/gone";
  const auto checkpoints = Open(model, gone);
  std::filesystem::remove(gone);
  std::filesystem::rename(file, gone);
  const Status unwritten = checkpoints->Save({.step = 1});
  EXPECT_EQ(cluster::ExitCodeOf(unwritten), cluster::kExitCannotCreate) << unwritten.ToString();
  EXPECT_THAT(unwritten.message(), HasSubstr(gone));
  // One that the session knows nothing of.
  const Variable unknown("unknown", {DType::kF32, {2}});
  const auto other =
      SessionCheckpoints::Create(*model.session, {unknown}, {.folder = folder.path() + "/other"})
          .value();
  EXPECT_EQ(other->Save({.step = 1}).code(), StatusCode::kFailedPrecondition);
}

// Processes as threads that find each other through TF_CONFIG, over real links.
std::vector<Status> RunWorkers(int n, const std::function<Status(membership::Team&)>& body) {
  const std::vector<membership::ReservedPort> ports(static_cast<size_t>(n));
  std::vector<Status> ends(static_cast<size_t>(n));
  membership::ThreadBarrier all_joined(n);
  std::vector<std::jthread> threads;
  for (int p = 0; p < n; ++p) {
    threads.emplace_back([&, p] {
      ends[static_cast<size_t>(p)] = [&]() -> Status {
        MT_ASSIGN_OR_RETURN(
            const auto team,
            membership::JoinTeam({}, {}, membership::EnvironmentOfWorker(ports, p)));
        MT_RETURN_IF_ERROR(all_joined.ArriveAndWait());
        MT_RETURN_IF_ERROR(body(*team));
        return team->Leave(std::chrono::seconds(30));
      }();
    });
  }
  threads.clear();
  return ends;
}

execute::SessionOptions OptionsOf(membership::Team& team) {
  return {.process = team.process(), .communicator = team.communicators()};
}

TEST(SessionCheckpointsTest, SeveralProcessesSaveTogetherAndLoadTogether) {
  const TempFolder folder;
  for (const Status& end : RunWorkers(2, [&](membership::Team& team) -> Status {
         Model model(On("batch=2,model=2", 2), OptionsOf(team));
         const auto checkpoints = Open(model, folder.path(), &team);
         MT_ASSIGN_OR_RETURN(const auto nothing, checkpoints->Restore());
         if (nothing) return Internal("expected an empty folder");
         for (int step = 1; step <= 3; ++step) {
           MT_RETURN_IF_ERROR(model.Fill(static_cast<float>(step)));
           MT_RETURN_IF_ERROR(checkpoints->Save({.step = step}));
           // Complete for all when it returns.
           MT_RETURN_IF_ERROR(
               checkpoint::Checkpoint::Open(checkpoint::CheckpointFolder(folder.path(), step))
                   .status());
         }
         return OkStatus();
       })) {
    EXPECT_EQ(end, OkStatus());
  }
  Model alone(On("model=3"));
  EXPECT_TRUE(Open(alone, folder.path())->Restore().ok());
  EXPECT_EQ(alone.Check(3), OkStatus());

  // What one of them finds damaged none takes.
  Damage(folder.path(), 3, "shard-00001-of-00002");
  for (const Status& end : RunWorkers(2, [&](membership::Team& team) -> Status {
         Model model(On("batch=4", 2), OptionsOf(team));
         MT_ASSIGN_OR_RETURN(const auto restored, Open(model, folder.path(), &team)->Restore());
         if (!restored || restored->position.step != 2) return Internal("expected step 2");
         return model.Check(2);
       })) {
    EXPECT_EQ(end, OkStatus());
  }
  for (const int64_t step : {1, 2}) Damage(folder.path(), step);
  for (const Status& end : RunWorkers(2, [&](membership::Team& team) -> Status {
         Model model(On("batch=4", 2), OptionsOf(team));
         return Open(model, folder.path(), &team)->Restore().status();
       })) {
    EXPECT_EQ(end.code(), StatusCode::kDataLoss) << end.ToString();
    EXPECT_THAT(end.message(), HasSubstr("no whole checkpoint is left"));
    EXPECT_THAT(end.message(), HasSubstr("ckpt-00000001/shard-0000"));
  }
}

TEST(SessionCheckpointsTest, CopiesThatDifferAreNamedInEveryProcessAndNothingIsSaved) {
  const TempFolder folder;
  for (const Status& end : RunWorkers(2, [&](membership::Team& team) -> Status {
         Model model(On("batch=2", 2), OptionsOf(team));
         const auto checkpoints = Open(model, folder.path(), &team);
         MT_RETURN_IF_ERROR(model.Fill(1));
         MT_RETURN_IF_ERROR(checkpoints->Save({.step = 1}));
         if (team.process() == 1) {
           // The least that can be off: the last bit of one number.
           MT_ASSIGN_OR_RETURN(Tensor bias, model.session->ReadStored(model.variables[1], 1));
           bias.mutable_bytes()[0] ^= std::byte{1};
           MT_RETURN_IF_ERROR(model.session->WriteStored(model.variables[1], 1, bias));
         }
         return checkpoints->Save({.step = 2});
       })) {
    EXPECT_EQ(end.code(), StatusCode::kInternal) << end.ToString();
    EXPECT_EQ(cluster::ExitCodeOf(end), cluster::kExitInternal);
    EXPECT_THAT(end.message(), HasSubstr("step 2: variable `bias`: expected equal copies"));
    EXPECT_THAT(end.message(), HasSubstr("rank 0 (worker-0)"));
    EXPECT_THAT(end.message(), HasSubstr("rank 1 (worker-1)"));
  }
  ASSERT_EQ(checkpoint::ListCheckpoints(folder.path())->size(), 1U);
  EXPECT_EQ(checkpoint::ListCheckpoints(folder.path())->front().step, 1);
  EXPECT_TRUE(checkpoint::ListIncomplete(folder.path()).empty());
}

TEST(SessionCheckpointsTest, CopiesOfOneProcessAreComparedToo) {
  const TempFolder folder;
  Model model(On("batch=2,model=2"), {.isolated = true});
  ASSERT_TRUE(model.Fill(1).ok());
  const auto checkpoints = Open(model, folder.path());
  EXPECT_EQ(checkpoints->Save({.step = 1}), OkStatus());
  Tensor rows = model.session->ReadStored(model.variables[0], 3).value();
  rows.mutable_bytes()[5] ^= std::byte{16};
  ASSERT_TRUE(model.session->WriteStored(model.variables[0], 3, rows).ok());
  const Status differ = checkpoints->Save({.step = 2});
  EXPECT_EQ(differ.code(), StatusCode::kInternal);
  EXPECT_THAT(differ.message(), HasSubstr("variable `kernel`"));
  EXPECT_THAT(differ.message(), HasSubstr("rank 1 (this process)"));
  EXPECT_THAT(differ.message(), HasSubstr("rank 3 (this process)"));
}

TEST(SessionCheckpointsTest, WhoIsLostWhileTheOthersSaveIsNamed) {
  const TempFolder folder;
  const auto ends = RunWorkers(2, [&](membership::Team& team) -> Status {
    Model model(On("batch=2", 2), OptionsOf(team));
    const auto checkpoints = Open(model, folder.path(), &team);
    if (team.process() == 1) return Cancelled("this one leaves without its part");
    return checkpoints->Save({.step = 1});
  });
  EXPECT_EQ(ends[1].code(), StatusCode::kCancelled);
  EXPECT_TRUE(membership::Team::IsLoss(ends[0])) << ends[0].ToString();
  EXPECT_THAT(ends[0].message(), HasSubstr("worker-1 lost: connection closed"));
  EXPECT_TRUE(checkpoint::ListCheckpoints(folder.path())->empty());
}

TEST(JoinTeamTest, WithoutTfConfigAProcessIsAlone) {
  const auto alone = membership::JoinTeam({}, {}, membership::EnvironmentOf({}));
  ASSERT_TRUE(alone.ok()) << alone.status().ToString();
  EXPECT_EQ(*alone, nullptr);
  EXPECT_THAT(membership::JoinTeam({}, {}, membership::EnvironmentOf({{"TF_CONFIG", "{"}}))
                  .status()
                  .message(),
              HasSubstr("TF_CONFIG"));
}

}  // namespace
}  // namespace meshtrain::saving
