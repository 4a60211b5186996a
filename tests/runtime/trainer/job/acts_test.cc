// Each row of the manifest under each strategy: its sample shows where the row says, or is refused
// with the field's name. A field that does neither is ignored, which is a bug.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/parameter/chief/coordinator.h"
#include "runtime/program/program.h"
#include "runtime/recipe/loop.h"
#include "runtime/recipe/recipe.h"
#include "runtime/recipe/step_plan.h"
#include "runtime/strategy/server_strategy.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/strategy.h"
#include "tests/support/manifest_rows.h"

namespace meshtrain::trainer {
namespace {

using manifest::Node;
using manifest::RowCase;
using manifest::Shows;
using recipe::Declared;
using recipe::Traced;

struct Strategy {
  std::string name;
  std::string replicas;
  std::string program = "{}";  // what it needs of the program, as YAML
  std::string devices = "";    // in the test's name
};
void PrintTo(const Strategy& s, std::ostream* out) { *out << s.name; }

const Strategy kStrategies[] = {
    {"Mesh", "worker: {replicas: 1}", "{mesh: {batch: 2}}"},
    {"Default", "worker: {replicas: 1}"},
    {"OneDevice", "worker: {replicas: 1}"},
    {"Mirrored", "worker: {replicas: 1}", "{devices: {count: 2}}"},
    {"CentralStorage", "worker: {replicas: 1}", "{devices: {count: 2}}"},
    {"MultiWorkerMirrored", "worker: {replicas: 2}"},
    {"ParameterServer", "chief: {replicas: 1}, worker: {replicas: 2}, ps: {replicas: 2}"},
    {"TPU", "worker: {replicas: 1}", "{devices: {count: 2}}"},
    {"Mesh", "worker: {replicas: 1}", "{mesh: {batch: 2}, devices: {kind: pjrt}}", "Pjrt"},
    {"Mirrored", "worker: {replicas: 1}", "{devices: {kind: pjrt, count: 2}}", "Pjrt"},
};

std::string Text(const data::PipelineSpec& spec) {
  struct {
    std::string operator()(const data::IdxFiles& f) const {
      return fmt::format("idx {} {} {}", f.images, f.labels,
                         f.labels_as ? mesh::DTypeName(*f.labels_as) : "");
    }
    std::string operator()(const data::NpyFiles& f) const {
      std::string text = fmt::format("npy {} {} {}", f.images, f.labels,
                                     f.labels_as ? mesh::DTypeName(*f.labels_as) : "");
      for (const data::NamedFile& one : f.more) text += fmt::format(" {} {}", one.name, one.file);
      return text;
    }
    std::string operator()(const data::ImageFolder& f) const {
      return fmt::format("image_folder {} {}", f.folder, f.channels);
    }
    std::string operator()(const data::MemoryArrays&) const { return "arrays"; }
    std::string operator()(const data::TextFile& t) const {
      return fmt::format("text {} {} {} {} {} {}", t.file, t.length, t.stride, t.alphabet,
                         t.validation_split, t.validation);
    }
    std::string operator()(const data::OwnSource& s) const { return s.name; }
    std::string operator()(const data::Scale& s) const { return fmt::format("scale {}", s.factor); }
    std::string operator()(const data::Normalize& n) const {
      return fmt::format("normalize {} {}", fmt::join(n.mean, ","), fmt::join(n.deviation, ","));
    }
    std::string operator()(const data::Cast& c) const {
      return fmt::format("cast {}", mesh::DTypeName(c.to));
    }
    std::string operator()(const data::RandomFlip& f) const {
      return fmt::format("flip {} {}", f.horizontal, f.vertical);
    }
    std::string operator()(const data::Window& w) const {
      return fmt::format("{} {} {}", w.height, w.width, w.padding);
    }
    std::string operator()(const data::RandomCrop& c) const { return "crop " + (*this)(c.window); }
    std::string operator()(const data::CenterCrop& c) const {
      return "middle " + (*this)(c.window);
    }
    std::string operator()(const data::MapStage& m) const {
      std::string text = "map";
      for (const data::MapOp& op : m.ops) text += " " + std::visit(*this, op);
      return text;
    }
    std::string operator()(const data::CacheStage&) const { return "cache"; }
    std::string operator()(const data::ShuffleStage& s) const {
      return fmt::format("shuffle {} {} {}", s.buffer, s.seed, s.reshuffle);
    }
    std::string operator()(const data::BatchStage& b) const {
      return fmt::format("batch {} {}", b.size, b.drop_remainder);
    }
    std::string operator()(const data::RepeatStage& r) const {
      return fmt::format("repeat {}", r.count);
    }
    std::string operator()(const data::PrefetchStage& p) const {
      return fmt::format("prefetch {}", p.depth);
    }
  } const part;
  std::string text =
      fmt::format("{} take {}", std::visit(part, spec.source.from), spec.source.take);
  for (const data::Stage& stage : spec.stages) text += "; " + std::visit(part, stage);
  return text;
}

// What `meshtrain plan` would print of it, and the worker run.
Result<std::string> PlanText(const manifest::Manifest& manifest) {
  const manifest::Program& program = manifest.program;
  MT_ASSIGN_OR_RETURN(const Declared declared, Declared::Create(program));
  const int64_t batch = program.data.batch;
  const bool classes =
      manifest::Outputs(program).front().loss.kind == "sparse_categorical_crossentropy";
  std::vector<mesh::TensorType> types = {{mesh::DType::kF32, {batch, 4, 4}}};
  types.resize(manifest::Components(program).size(),
               classes ? mesh::TensorType{mesh::DType::kI32, {batch}}
                       : mesh::TensorType{mesh::DType::kF32, {batch, 4}});
  MT_ASSIGN_OR_RETURN(const Traced traced, declared.Trace(types));
  const std::string text = fmt::format("{} {} {}", program::HashProgram(traced.programs.train_step),
                                       program::HashProgram(traced.programs.eval_step),
                                       program::HashProgram(traced.programs.init));
  MT_ASSIGN_OR_RETURN(const plan::Plan plan, recipe::StepPlanOf(program, declared, types));
  return fmt::format("{} {} {}", text, plan.hash, traced.mesh.ToString());
}

// After which epochs a run of falling and rising figures ends, and what it leaves.
std::string LoopText(const manifest::Program& program) {
  const manifest::Train& train = program.train;
  const train::LoopOptions options = recipe::LoopOptionsOf(train, {});
  std::string text =
      fmt::format("{} {} {} {} {}", options.epochs, options.steps_per_epoch,
                  options.validation_steps, options.validate_every, options.end_after_bad_steps);
  auto early = recipe::EarlyStoppingOf(program);
  if (!early) return text;
  const double losses[] = {1.0, 0.9, 0.8, 0.85, 0.3, 0.31, 0.32, 0.33, 0.34, 0.35};
  int64_t epoch = 0;
  for (const double loss : losses) {
    if (early->WantsStop()) break;
    ++epoch;
    const train::Scalars figures = {{"loss", loss}, {"accuracy", loss}};
    const train::EpochInfo info{
        .epoch = epoch, .epochs = 10, .step = epoch, .train = figures, .validation = figures};
    EXPECT_TRUE(early->OnEpochEnd(info, {.step = epoch, .epoch = epoch}).ok());
  }
  return text + fmt::format("; {} epochs, the model of step {}", epoch,
                            recipe::BestStep(train, &*early).value_or(-1));
}

std::string Text(const train::Packing& packing) {
  return fmt::format("{}/{}", packing.num_packs.value_or(-1), packing.bytes_per_pack.value_or(-1));
}

std::string ServersText(const strategy::ParameterServerOptions& options) {
  const parameter::CoordinatorOptions& o = options.coordinator;
  std::string text =
      fmt::format("{} in flight, bound {}", options.steps_in_flight, o.staleness_bound);
  for (const int64_t rows : {1, 2, 4, 8, 1 << 18}) {
    text += fmt::format(" {}", parameter::CountShards(o.partitioner, {mesh::DType::kF32, {rows}}));
  }
  return text;
}

struct Observed {
  std::string refused;  // the message; "": it is not
  std::map<Shows, std::string> shows;
};

Observed Observe(const Strategy& strategy, const Node& program, const Node& checkpoint) {
  Node spec = Node::Map();
  spec.Put("strategy", Node::Word(strategy.name));
  spec.Put("replicaSpecs", manifest::Parse("{" + strategy.replicas + "}"));
  spec.Put("checkpoint", checkpoint);
  spec.Put("program", program);
  Node job = Node::Map();
  job.Put("kind", Node::Word("TrainingJob"));
  job.Put("spec", std::move(spec));
  Observed seen;
  const auto manifest = recipe::ParseManifest(manifest::ToYaml(job), "job.yaml");
  if (!manifest.ok()) {
    seen.refused = manifest.status().message();
    return seen;
  }
  const manifest::Program& read = manifest->program;
  const auto plan = PlanText(*manifest);
  if (!plan.ok()) {
    seen.refused = plan.status().message();
    return seen;
  }
  seen.shows[Shows::kPlan] = *plan;
  // Beside servers a worker plans what it is sent, on the mesh of its own devices.
  if (strategy.name == "ParameterServer") {
    seen.shows[Shows::kPlan] += fmt::format(" on {} devices", read.devices.count.value_or(1));
  }
  seen.shows[Shows::kData] =
      Text(recipe::TrainPipeline(read)) + "\n" + Text(recipe::TestPipeline(read));
  const JobConfig config{.output = "out"};
  seen.shows[Shows::kLoop] = LoopText(read);
  const strategy::MirroredOptions mirrored = MirroredOptionsOf(config, read);
  const strategy::MultiWorkerOptions workers = MultiWorkerOptionsOf(config, read);
  seen.shows[Shows::kSums] =
      fmt::format("{} {} {} {} {}", static_cast<int>(mirrored.cross_device_ops),
                  Text(mirrored.packing), static_cast<int>(workers.communication),
                  Text(workers.packing), IsIsolated(config, *manifest));
  seen.shows[Shows::kServers] = ServersText(ServerOptionsOf(*manifest));
  seen.shows[Shows::kWeights] = InitialWeightsOf(read, {}).status().message();
  const train::SaveTimes times = recipe::SaveTimesOf(*manifest);
  seen.shows[Shows::kSaving] =
      fmt::format("{} {} {} in {}, {} stay, resume {}", times.every_steps, times.each_epoch,
                  times.at_latest.count(), CheckpointFolderOf(config, *manifest).path,
                  ServerOptionsOf(*manifest).coordinator.keep, manifest->checkpoint.resume);
  JobConfig apart = config;
  apart.isolated = true;
  seen.shows[Shows::kNumbers] = CheckMeshJob(*manifest, apart).message();
  return seen;
}

class ActsTest : public ::testing::TestWithParam<Strategy> {};

TEST_P(ActsTest, EveryFieldActsOrIsRefused) {
  const Strategy& strategy = GetParam();
  std::map<std::string, Observed> bases;  // by text: many rows share theirs
  int acts = 0;
  Node plain = manifest::Parse(manifest::kRowProgram);
  manifest::Merge(&plain, manifest::Parse(strategy.program));
  ASSERT_EQ(Observe(strategy, plain, Node::Map()).refused, "");
  for (const RowCase& row : manifest::AllRows()) {
    SCOPED_TRACE(strategy.name + ": " + row.path);
    Node program = manifest::Parse(manifest::kRowProgram);
    manifest::Merge(&program, manifest::Parse(strategy.program));
    if (!row.context.empty()) manifest::Merge(&program, manifest::Parse(row.context));
    const auto [base, fresh] = bases.try_emplace(manifest::ToYaml(program));
    if (fresh) base->second = Observe(strategy, program, Node::Map());
    const Observed& before = base->second;

    Node checkpoint = Node::Map();
    const Node sample = manifest::Parse(row.field->says.sample);
    if (row.path.starts_with("checkpoint.")) {
      manifest::PutAt(&checkpoint, row.path.substr(row.path.find('.') + 1), sample);
    } else {
      manifest::PutAt(&program, row.path, sample);
    }
    const Observed after = Observe(strategy, program, checkpoint);
    if (!after.refused.empty()) {
      // In its own name, or in that of a field that it stands in; or what it needs beside it is.
      bool named = after.refused == before.refused;
      for (std::string path = row.path; !named;) {
        named = after.refused.find(path) != std::string::npos;
        const size_t dot = path.rfind('.');
        if (dot == std::string::npos) break;
        path.resize(dot);
      }
      EXPECT_TRUE(named) << after.refused;
      continue;
    }
    if (row.field->says.shows == Shows::kPermits) {
      // What it permits holds anyway, or only with it.
      if (!before.refused.empty()) {
        EXPECT_NE(before.refused.find(row.path), std::string::npos) << before.refused;
      }
      ++acts;
      continue;
    }
    if (!before.refused.empty()) {
      ADD_FAILURE() << "refused without it: " << before.refused;
      continue;
    }
    const Shows shows = row.field->says.shows;
    bool shown = after.shows.at(shows) != before.shows.at(shows);
    // A word may say what holds anyway under some strategy: then another shows.
    for (size_t i = 0; i < row.field->words.size() && !shown; ++i) {
      manifest::PutAt(&program, row.path, Node::Word(row.field->words[i]));
      const Observed other = Observe(strategy, program, checkpoint);
      shown = other.refused.empty() && other.shows.at(shows) != before.shows.at(shows);
    }
    EXPECT_TRUE(shown) << "nothing shows, still: " << before.shows.at(shows);
    ++acts;
  }
  EXPECT_GT(acts, 80);
}

INSTANTIATE_TEST_SUITE_P(Strategies, ActsTest, ::testing::ValuesIn(kStrategies),
                         [](const auto& info) { return info.param.name + info.param.devices; });

}  // namespace
}  // namespace meshtrain::trainer
