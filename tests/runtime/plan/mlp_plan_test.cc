// What the plan of the main job's training step says of itself, against figures that follow from
// the model's shapes: its collectives, its memory, its hash, and the same in print.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "runtime/base/text.h"
#include "runtime/plan/plan.h"
#include "tests/runtime/sharding/models.h"

namespace meshtrain::plan {
namespace {

using mesh::Layout;
using mesh::Mesh;
using sharding::Given;
using sharding::MlpTrainStep;

// The model: batches of 128; kernels and biases, each with Adam's two slots, and t.
constexpr int64_t kBatch = 128, kIn = 784, kHidden1 = 700, kHidden2 = 500, kOut = 10;
constexpr int64_t kF32 = 4, kI64 = 8;

struct Job {
  std::string name;
  Mesh mesh;
  Given given;
  // Elements of kernels and biases that one device holds; so many has each of their gradients.
  std::vector<int64_t> weights;
  int64_t rows = 0;  // of the batch, on one device
  std::vector<CollectiveBytes> collectives;
};

// Every device has all weights and an eighth of the batch. What crosses the axis are the sums of
// six gradients, the loss and the accuracy; a device of a ring of n sends 2 (n - 1) / n of each.
Job DataParallel() {
  Job job{.name = "batch=8", .mesh = *Mesh::Parse("batch=8")};
  job.given.inputs.insert_or_assign("x", *Layout::BatchSharded(job.mesh, "batch", 2));
  job.rows = kBatch / 8;
  job.weights = {kIn * kHidden1, kHidden1, kHidden1 * kHidden2, kHidden2, kHidden2 * kOut, kOut};
  int64_t bytes = 0;
  for (const int64_t elements : job.weights) bytes += elements * kF32 * 2 * 7 / 8;
  for (int scalar = 0; scalar < 2; ++scalar) bytes += kF32 * 2 * 7 / 8;
  job.collectives = {{"all_reduce", "batch", bytes, 8}};
  return job;
}

// hidden_1 has its columns and hidden_2 its rows split in two: one sum of hidden_2's activations
// over `model`, and over `batch` what DataParallel sums, of half of the split weights.
Job TwoAxes() {
  Job job{.name = "batch=4,model=2", .mesh = *Mesh::Parse("batch=4,model=2")};
  job.given.inputs.insert_or_assign("x", *Layout::BatchSharded(job.mesh, "batch", 2));
  GiveLayer(job.given, "hidden_1", *Layout::Parse("{*, model}", job.mesh));
  GiveLayer(job.given, "hidden_2", *Layout::Parse("{model, *}", job.mesh));
  job.rows = kBatch / 4;
  job.weights = {kIn * kHidden1 / 2, kHidden1 / 2,    kHidden1 / 2 * kHidden2,
                 kHidden2,           kHidden2 * kOut, kOut};
  int64_t bytes = 0;
  for (const int64_t elements : job.weights) bytes += elements * kF32 * 2 * 3 / 4;
  for (int scalar = 0; scalar < 2; ++scalar) bytes += kF32 * 2 * 3 / 4;
  job.collectives = {{"all_reduce", "model", job.rows * kHidden2 * kF32 * 2 * 1 / 2, 1},
                     {"all_reduce", "batch", bytes, 8}};
  return job;
}

Plan PlanOfJob(const Job& job, const Options& options = {}, const sharding::MlpSizes& sizes = {}) {
  auto partitioned = sharding::Shard(MlpTrainStep(sizes), job.mesh, job.given);
  EXPECT_TRUE(partitioned.ok()) << partitioned.status().ToString();
  auto plan = MakePlan(*std::move(partitioned), options);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return *std::move(plan);
}

class MlpPlanTest : public ::testing::TestWithParam<Job> {
 protected:
  const Job& job() const { return GetParam(); }
  int64_t StateBytes() const {
    int64_t elements = 1;  // t
    for (const int64_t w : job().weights) elements += 3 * w;
    return elements * kF32;
  }
  int64_t InputBytes() const { return job().rows * (kIn * kF32 + kI64); }
  static constexpr int64_t kOutputBytes = 2 * kF32;
};
INSTANTIATE_TEST_SUITE_P(Meshes, MlpPlanTest, ::testing::Values(DataParallel(), TwoAxes()),
                         [](const auto& info) {
                           return info.param.mesh.num_axes() == 1 ? "DataParallel" : "TwoAxes";
                         });

TEST_P(MlpPlanTest, CollectivesAreThoseThatTheShapesAskFor) {
  const Plan plan = PlanOfJob(job());
  int64_t bytes = 0;
  ASSERT_EQ(plan.Collectives().size(), job().collectives.size());
  for (const CollectiveBytes& want : job().collectives) {
    bytes += want.bytes;
    int found = 0;
    for (const CollectiveBytes& row : plan.Collectives()) {
      if (row.kind != want.kind || row.axes != want.axes) continue;
      ++found;
      EXPECT_EQ(row.bytes, want.bytes) << want.axes;
      EXPECT_EQ(row.count, want.count) << want.axes;
    }
    EXPECT_EQ(found, 1) << want.kind << " over " << want.axes;
  }
  EXPECT_EQ(plan.CollectiveBytesPerStep(), bytes);
}

// Buckets and the order of steps change neither the calls' contents nor what they move.
TEST_P(MlpPlanTest, HowStepsAreOrderedDoesNotChangeWhatMoves) {
  for (const Options& options : {Options{.fuse = false}, Options{.bucket_bytes = 0},
                                 Options{.overlap = true}, Options{.recorded_order = true}}) {
    EXPECT_EQ(PlanOfJob(job(), options).CollectiveBytesPerStep(),
              PlanOfJob(job()).CollectiveBytesPerStep());
  }
}

TEST_P(MlpPlanTest, MemoryIsWhatTheStepHoldsAndAnArenaForItsGradients) {
  const Plan plan = PlanOfJob(job());
  EXPECT_EQ(plan.state_bytes, StateBytes());
  EXPECT_EQ(plan.input_bytes, InputBytes());
  EXPECT_EQ(plan.output_bytes, kOutputBytes);
  EXPECT_EQ(plan.peak_bytes, StateBytes() + InputBytes() + kOutputBytes + plan.arena_bytes);
  // A gradient stands whole in the arena between its sum and its update, beside the activations
  // that it came from. All gradients, activations and their gradients at once would be the most.
  int64_t gradients = 0, activations = 0;
  for (const int64_t w : job().weights) gradients += w * kF32;
  const int64_t columns = job().weights[1] + kHidden2 + kOut;
  activations = job().rows * columns * kF32;
  EXPECT_GE(plan.arena_bytes, job().weights[0] * kF32);
  EXPECT_LE(plan.arena_bytes, gradients + 4 * activations);
  // No byte of the arena is there for nothing.
  int64_t end = 0;
  for (const Slot& slot : plan.slots) {
    if (slot.kind == SlotKind::kArena) end = std::max(end, slot.offset + slot.bytes);
  }
  EXPECT_LE(end, plan.arena_bytes);
  EXPECT_LT(plan.arena_bytes - end, 64);
}

// --- the report

// Lines of `text` that stand between the line `title` and the next one that is not indented.
std::vector<std::string> Section(const std::string& text, const std::string& title) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (inside && !line.starts_with(" ")) break;
    if (inside) lines.push_back(line);
    inside = inside || line == title;
  }
  EXPECT_TRUE(inside) << "no `" << title << "` in\n" << text;
  return lines;
}

TEST_P(MlpPlanTest, TheReportPrintsTheSameCollectives) {
  const Plan plan = PlanOfJob(job());
  const std::vector<std::string> lines = Section(plan.Report(), "collectives per step and device");
  const std::regex row(R"( +(\S+) +over (\S+) +(\d+) x +(\d+) bytes \((.+)\))");
  std::vector<CollectiveBytes> printed;
  for (const std::string& line : lines) {
    std::smatch m;
    ASSERT_TRUE(std::regex_match(line, m, row)) << line;
    printed.push_back({m[1], m[2], std::stoll(m[4]), std::stoi(m[3])});
    EXPECT_EQ(m[5], HumanBytes(printed.back().bytes));
  }
  const auto text = [](std::vector<CollectiveBytes> rows) {
    std::set<std::string> lines;
    for (const CollectiveBytes& r : rows) {
      lines.insert(r.kind + " " + r.axes + " " + std::to_string(r.count) + " x " +
                   std::to_string(r.bytes));
    }
    return lines;
  };
  EXPECT_EQ(printed.size(), job().collectives.size());
  EXPECT_EQ(text(printed), text(job().collectives));
}

TEST_P(MlpPlanTest, TheReportPrintsTensorsMemoryAndHash) {
  const Plan plan = PlanOfJob(job());
  const std::string report = plan.Report();
  EXPECT_TRUE(report.starts_with("plan of train_step on 8 devices, mesh " + job().name + "\n"))
      << report;
  const std::string rows = std::to_string(job().rows);
  const std::vector<std::string> inputs = Section(report, "inputs");
  ASSERT_EQ(inputs.size(), 2u);
  const auto squeezed = [](const std::string& line) {
    return std::regex_replace(line, std::regex(" +"), " ");
  };
  EXPECT_EQ(squeezed(inputs[0]), " x f32[128,784] {batch, *} f32[" + rows + ",784] " +
                                     HumanBytes(job().rows * kIn * kF32) + " a device");
  EXPECT_EQ(squeezed(inputs[1]),
            " y i64[128] {batch} i64[" + rows + "] " + HumanBytes(job().rows * kI64) + " a device");
  // Six weights with two slots each, and t.
  EXPECT_EQ(Section(report, "states").size(), 19u);
  EXPECT_EQ(Section(report, "outputs").size(), 2u);
  // Two lines for each reshard: what and why.
  size_t moves = 0;
  for (const CollectiveBytes& row : job().collectives) moves += row.count;
  EXPECT_EQ(Section(report, "reshards").size(), 2 * moves);
  EXPECT_THAT(report, ::testing::HasSubstr("\nmemory       peak " + HumanBytes(plan.peak_bytes) +
                                           " a device = states " + HumanBytes(StateBytes()) +
                                           " + inputs " + HumanBytes(InputBytes()) + " + outputs " +
                                           HumanBytes(kOutputBytes) + " + arena " +
                                           HumanBytes(plan.arena_bytes) + "\n"));
  std::smatch hash;
  ASSERT_TRUE(std::regex_search(report, hash, std::regex(R"(\nhash +([0-9a-f]{16})\n)")));
  EXPECT_EQ(std::stoull(hash[1], nullptr, 16), plan.hash);
}

TEST(MlpPlanHashTest, IsEqualForTheSameAndDiffersWhereSomethingElseWouldRun) {
  const Job base = TwoAxes();
  const uint64_t hash = PlanOfJob(base).hash;
  EXPECT_EQ(PlanOfJob(base).hash, hash);

  std::map<std::string, uint64_t> others;
  Job job = TwoAxes();
  others["another mesh"] = PlanOfJob(DataParallel()).hash;
  // The same sizes under other names.
  job.mesh = *Mesh::Parse("rows=4,model=2");
  job.given = {};
  job.given.inputs.insert_or_assign("x", *Layout::BatchSharded(job.mesh, "rows", 2));
  GiveLayer(job.given, "hidden_1", *Layout::Parse("{*, model}", job.mesh));
  GiveLayer(job.given, "hidden_2", *Layout::Parse("{model, *}", job.mesh));
  others["another name of an axis"] = PlanOfJob(job).hash;
  // The same axes over devices of two processes.
  std::vector<mesh::Device> devices;
  for (int i = 0; i < 8; ++i) devices.push_back({mesh::DeviceKind::kCpu, i / 4, i % 4});
  job = TwoAxes();
  job.mesh = *Mesh::Create(base.mesh.axes(), devices);
  const auto move = [&](std::map<std::string, Layout>& layouts) {
    for (auto& [name, layout] : layouts) layout = *Layout::FromSpecs(layout.specs(), job.mesh);
  };
  move(job.given.inputs);
  move(job.given.states);
  others["other devices"] = PlanOfJob(job).hash;
  job = TwoAxes();
  GiveLayer(job.given, "logits", *Layout::Parse("{*, model}", job.mesh));
  others["another layout of a state"] = PlanOfJob(job).hash;
  job = TwoAxes();
  job.given.inputs.insert_or_assign("x", *Layout::Parse("{*, batch}", job.mesh));
  others["another layout of an input"] = PlanOfJob(job).hash;
  others["another batch"] = PlanOfJob(base, {}, {.batch = 64}).hash;
  others["another precision"] = PlanOfJob(base, {}, {.dtype = program::DType::kF64}).hash;
  // One local program; what differs is which steps it falls into, and when they come.
  others["no chains"] = PlanOfJob(base, {.fuse = false}).hash;
  others["no buckets"] = PlanOfJob(base, {.bucket_bytes = 0}).hash;
  others["collectives early"] = PlanOfJob(base, {.overlap = true}).hash;

  std::map<uint64_t, std::string> seen = {{hash, "the plan itself"}};
  for (const auto& [what, other] : others) {
    const auto [at, fresh] = seen.emplace(other, what);
    EXPECT_TRUE(fresh) << what << " has the hash of " << at->second;
  }
}

// Plans for larger batches make the same calls where these come in the order in which they were
// recorded; other buckets are other calls, and so is gathering the activations of small batches.
TEST(MlpPlanHashTest, OfTheCollectivesAloneFollowsTheCalls) {
  const Job job = DataParallel();
  const auto hash = [&](const Job& of, Options options, const sharding::MlpSizes& sizes) {
    options.recorded_order = true;
    return PlanOfJob(of, options, sizes).CollectivesHash();
  };
  const uint64_t want = hash(job, {}, {});
  EXPECT_EQ(hash(job, {}, {.batch = 256}), want);
  EXPECT_NE(PlanOfJob(job, {.recorded_order = true}, {.batch = 256}).hash,
            PlanOfJob(job, {.recorded_order = true}).hash);
  EXPECT_NE(hash(job, {}, {.batch = 64}), want);
  EXPECT_NE(hash(job, {.bucket_bytes = 0}, {}), want);
  EXPECT_NE(hash(job, {}, {.widths = {784, 700, 501, 10}}), want);
  EXPECT_NE(hash(TwoAxes(), {}, {}), want);
}

}  // namespace
}  // namespace meshtrain::plan
