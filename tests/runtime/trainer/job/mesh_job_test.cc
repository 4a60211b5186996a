// Two processes of a mesh, as threads over real links, whose checkpoint files fail while both are
// well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>

#include "runtime/base/clock.h"
#include "runtime/base/file.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/save.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/saving/final.h"
#include "runtime/saving/resume.h"
#include "runtime/trainer/job/training.h"
#include "tests/runtime/membership/membership_testing.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::trainer {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing_folder::TempFolder;

// Who takes a file for a peer would never end by itself.
constexpr Duration kLongest = std::chrono::minutes(2);

constexpr char kManifest[] = R"(
program:
  seed: 7
  mesh: {batch: 2}
  data:
    train: {idx: {images: FOLDER/digits5120-images-idx3-ubyte.gz, labels: FOLDER/digits5120-labels-idx1-ubyte.gz}}
    map: [{scale: 0.00392156862745098}]
    batch: 512
  model: [flatten, dense: {units: 10}]
  loss: {sparse_categorical_crossentropy: {from_logits: true}}
  optimizer: sgd
  train: {epochs: 1}
)";
constexpr int64_t kStepsPerEpoch = 10;

class MeshJobTest : public ::testing::Test {
 protected:
  // A folder of that name, for a process or for both.
  std::string Folder(const std::string& name) const {
    std::string path = folder_.path() + "/" + name;
    EXPECT_TRUE(MakeDirectories(path).ok());
    return path;
  }

  // Where `checkpoint.path` of each process leads; the endings of both.
  std::array<Status, 2> Train(const std::array<std::string, 2>& checkpoints, int64_t every,
                              int64_t epochs, Duration parts_timeout = seconds(60)) {
    std::string text = text_;
    for (size_t at; (at = text.find("FOLDER")) != std::string::npos;) {
      text.replace(at, 6, MT_TESTDATA "/mlp");
    }
    manifest::Manifest manifest = recipe::ParseManifest(text, "test", {.processes = 2}).value();
    manifest.program.train.epochs = epochs;
    manifest.checkpoint.every_steps = every;
    manifest.checkpoint.resume = resume_;
    const std::array<membership::ReservedPort, 2> ports;
    cluster::ClusterSpec cluster;
    for (int p = 0; p < 2; ++p) cluster.hosts[cluster::Role::kWorker][p] = ports[p].address();
    std::stop_source stop;
    std::array<std::future<Status>, 2> running;
    for (int p = 0; p < 2; ++p) {
      JobConfig config{.output = Folder(outputs_[p]),
                       .port = std::nullopt,
                       .threads = 1,
                       .parts_timeout = parts_timeout};
      config.job.tf_config = cluster::TfConfig{cluster, {cluster::Role::kWorker, p}};
      config.job.job = "test/files";
      config.job.peer_return = seconds(1);
      manifest.checkpoint.path = checkpoints[p];
      running[p] = std::async(std::launch::async, [=, token = stop.get_token()] {
        return RunTraining(config, manifest, MakeMeshJob, token);
      });
    }
    const Duration end = SystemClock().Monotonic() + kLongest;
    for (std::future<Status>& one : running) {
      if (one.wait_for(end - SystemClock().Monotonic()) != std::future_status::ready) {
        stop.request_stop();
      }
    }
    return {running[0].get(), running[1].get()};
  }

  const TempFolder folder_;
  std::array<std::string, 2> outputs_ = {"output-0", "output-1"};
  std::string text_ = kManifest;
  bool resume_ = true;
};

// A regular file that cannot be read (EIO): no memory lies at its beginning.
void MakeUnreadable(const std::string& path) {
  ASSERT_EQ(::symlink("/proc/self/mem", path.c_str()), 0) << std::strerror(errno);
}

TEST_F(MeshJobTest, AFolderThatIsNotSharedEndsTheJobNamingTheMissingPart) {
  const auto [chief, other] =
      Train({Folder("a"), Folder("b")}, /*every=*/5, /*epochs=*/100000, seconds(1));
  EXPECT_EQ(cluster::ExitCodeOf(chief), cluster::kExitIo) << chief.ToString();
  EXPECT_THAT(chief.message(), HasSubstr("expected the part of process 1 of 2 (a folder "
                                         "that all processes share), got: nothing in 1 s"));
  // Parts of one attempt only: nobody has joined a second time and begun again.
  std::set<std::string> parts;
  for (const auto& entry : fs::recursive_directory_iterator(folder_.path() + "/b")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("part-")) parts.insert(name);
  }
  EXPECT_EQ(parts.size(), 1u) << ::testing::PrintToString(parts);
  EXPECT_EQ(cluster::ExitCodeOf(other), cluster::kExitRetry) << other.ToString();
  EXPECT_THAT(other.message(), HasSubstr("worker-0"));
}

TEST_F(MeshJobTest, ALastCheckpointThatStaysIncompleteEndsBothAlike) {
  const auto [chief, other] =
      Train({Folder("a"), Folder("b")}, /*every=*/0, /*epochs=*/1, seconds(1));
  EXPECT_EQ(cluster::ExitCodeOf(chief), cluster::kExitIo) << chief.ToString();
  EXPECT_THAT(chief.message(), HasSubstr("expected the part of process 1 of 2"));
  EXPECT_EQ(cluster::ExitCodeOf(other), cluster::kExitIo) << other.ToString();
  EXPECT_THAT(other.message(), HasSubstr("worker-0: "));
  EXPECT_THAT(other.message(), HasSubstr("expected the part of process 1 of 2"));
}

// As `meshtrain run` has it: all save to `checkpoints` of the leader's output.
TEST_F(MeshJobTest, AFinishedRunInTheOutputIsReplacedByTheOneWhoCommits) {
  outputs_ = {"output", "output/worker-1"};
  const std::string shared = folder_.path() + "/output/checkpoints";
  const auto run = [&](int64_t step) {
    const auto last = checkpoint::Checkpoint::Open(checkpoint::CheckpointFolder(shared, step));
    EXPECT_TRUE(last.ok()) << last.status().ToString();
    if (!last.ok()) return std::string();
    EXPECT_TRUE(saving::IsFinal((*last)->index()));
    EXPECT_EQ((*last)->index().files.size(), 2u) << "each process saves its own shards";
    return (*last)->index().metadata.at(std::string(saving::kRunKey));
  };
  const auto train = [&](int64_t epochs) {
    for (const Status& end : Train({shared, shared}, 0, epochs)) EXPECT_EQ(end, OkStatus());
  };
  for (const char* number : {"0", "1", "2"}) {
    train(2);
    EXPECT_EQ(run(2 * kStepsPerEpoch), number);
  }
  // Of another model, and shorter.
  text_.replace(text_.find("optimizer: sgd"), 14, "optimizer: adam");
  train(1);
  EXPECT_EQ(run(kStepsPerEpoch), "3");
  EXPECT_EQ(checkpoint::ListCheckpoints(shared)->size(), 1u);
  resume_ = false;
  train(1);
  EXPECT_EQ(run(kStepsPerEpoch), "4");
}

TEST_F(MeshJobTest, AFolderThatCannotBeWrittenEndsTheJob) {
  const std::string shared = Folder("shared");
  const std::string fifth = checkpoint::CheckpointFolder(shared, 5);
  std::ofstream(fifth) << "a file where the folder should be";
  const auto endings = Train({shared, shared}, /*every=*/5, /*epochs=*/100000);
  int said = 0;
  for (const Status& ending : endings) {
    // Who leaves second may see the first one leave before it comes to its own error.
    if (cluster::ExitCodeOf(ending) == cluster::kExitRetry) continue;
    ++said;
    EXPECT_EQ(cluster::ExitCodeOf(ending), cluster::kExitCannotCreate) << ending.ToString();
    EXPECT_THAT(ending.message(), HasSubstr("ckpt-00000005: cannot make folder"));
  }
  EXPECT_GT(said, 0);
}

TEST_F(MeshJobTest, ACheckpointThatOneCannotReadEndsBoth) {
  const std::string shared = Folder("shared"), mine = Folder("mine");
  for (const Status& ending : Train({shared, shared}, /*every=*/0, /*epochs=*/1)) {
    ASSERT_EQ(cluster::ExitCodeOf(ending), cluster::kExitDone) << ending.ToString();
  }
  ASSERT_EQ(checkpoint::FindLatest(shared)->step, kStepsPerEpoch);
  const std::string last = checkpoint::CheckpointFolder(mine, kStepsPerEpoch);
  ASSERT_TRUE(MakeDirectories(last).ok());
  MakeUnreadable(last + "/index.json");
  const auto [chief, other] = Train({shared, mine}, /*every=*/0, /*epochs=*/2);
  EXPECT_EQ(cluster::ExitCodeOf(chief), cluster::kExitIo) << chief.ToString();
  EXPECT_THAT(chief.message(), HasSubstr("worker-1: " + mine));
  EXPECT_EQ(cluster::ExitCodeOf(other), cluster::kExitIo) << other.ToString();
  EXPECT_THAT(other.message(), HasSubstr("cannot read"));
}

}  // namespace
}  // namespace meshtrain::trainer
