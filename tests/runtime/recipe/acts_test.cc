// Each row of the manifest under each strategy: its sample shows where the row says, or is refused
// with the field's name. A field that does neither is ignored, which is a bug.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/fields/fields.h"
#include "runtime/program/program.h"
#include "runtime/recipe/plan_options.h"
#include "runtime/recipe/recipe.h"
#include "runtime/sharding/sharding.h"
#include "tests/support/manifest_rows.h"

namespace meshtrain::recipe {
namespace {

using manifest::Node;
using manifest::RowCase;
using manifest::Shows;

struct Strategy {
  std::string name;
  std::string replicas;
  std::string program = "{}";  // what it needs of the program, as YAML
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
};

std::string Text(const data::PipelineSpec& spec) {
  struct {
    std::string operator()(const data::IdxFiles& f) const {
      return fmt::format("idx {} {} {}", f.images, f.labels,
                         f.labels_as ? mesh::DTypeName(*f.labels_as) : "");
    }
    std::string operator()(const data::Arrays&) const { return "arrays"; }
    std::string operator()(const data::TextFile& t) const {
      return fmt::format("text {} {} {} {} {} {}", t.file, t.length, t.stride, t.alphabet,
                         t.validation_split, t.validation);
    }
    std::string operator()(const data::OwnSource& s) const { return s.name; }
    std::string operator()(const data::Scale& s) const { return fmt::format("scale {}", s.factor); }
    std::string operator()(const data::Normalize& n) const {
      return fmt::format("normalize {} {}", n.mean, n.deviation);
    }
    std::string operator()(const data::Cast& c) const {
      return fmt::format("cast {}", mesh::DTypeName(c.to));
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
  const bool classes = program.loss.kind == "sparse_categorical_crossentropy";
  const std::vector<mesh::TensorType> types = {
      {mesh::DType::kF32, {batch, 4, 4}},
      classes ? mesh::TensorType{mesh::DType::kI32, {batch}}
              : mesh::TensorType{mesh::DType::kF32, {batch, 4}}};
  MT_ASSIGN_OR_RETURN(const Traced traced, declared.Trace(types));
  const program::Program& step = traced.programs.train_step;
  const std::string text = fmt::format("{} {} {}", program::HashProgram(step),
                                       program::HashProgram(traced.programs.eval_step),
                                       program::HashProgram(traced.programs.init));
  sharding::Given given;
  given.inputs = traced.layouts.inputs;
  for (const program::State& s : step.states) {
    if (const auto it = traced.layouts.states.find(s.name); it != traced.layouts.states.end()) {
      given.states.insert(*it);
    }
  }
  MT_ASSIGN_OR_RETURN(sharding::Partitioned partitioned,
                      sharding::Shard(step, traced.mesh, given, {.guard_updates = true}));
  MT_ASSIGN_OR_RETURN(const plan::Options options, PlanOptionsOf(program, declared, types));
  MT_ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(std::move(partitioned), options));
  return fmt::format("{} {} {}", text, plan.hash, traced.mesh.ToString());
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
  const auto manifest = ParseManifest(manifest::ToYaml(job), "job.yaml");
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
  seen.shows[Shows::kData] = Text(TrainPipeline(read)) + "\n" + Text(TestPipeline(read));
  // The driver of the loop, the engines and the savers are handed these values themselves.
  const Node written = manifest::WriteProgram(read);
  const auto part = [&](std::string_view key) {
    const Node* node = written.Find(key);
    return node == nullptr ? std::string() : manifest::ToYaml(*node);
  };
  seen.shows[Shows::kLoop] = part("train");
  seen.shows[Shows::kSums] = part("mirrored") + part("multi_worker_mirrored");
  seen.shows[Shows::kServers] = part("parameter_server");
  seen.shows[Shows::kWeights] = read.initial_weights;
  seen.shows[Shows::kSaving] =
      manifest::ToYaml(manifest::WriteFields(manifest::CheckpointFields(), &manifest->checkpoint));
  seen.shows[Shows::kNumbers] = read.strict ? "strict" : "fast";
  return seen;
}

class ActsTest : public testing::TestWithParam<Strategy> {};

TEST_P(ActsTest, EveryFieldActsOrIsRefused) {
  const Strategy& strategy = GetParam();
  std::map<std::string, Observed> bases;  // by text: many rows share theirs
  int acts = 0;
  Node plain = manifest::Parse(manifest::kRowProgram);
  manifest::Merge(&plain, manifest::Parse(strategy.program));
  const bool nothing_runs = !Observe(strategy, plain, Node::Map()).refused.empty();
  EXPECT_EQ(nothing_runs, strategy.name == "TPU");
  for (const RowCase& row : manifest::AllRows()) {
    SCOPED_TRACE(strategy.name + ": " + row.path);
    Node program = manifest::Parse(manifest::kRowProgram);
    manifest::Merge(&program, manifest::Parse(strategy.program));
    if (!row.beside.empty()) manifest::Merge(&program, manifest::Parse(row.beside));
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
    // A strategy that cannot run yet refuses all.
    if (nothing_runs) {
      EXPECT_NE(after.refused, "");
      continue;
    }
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
  EXPECT_TRUE(nothing_runs || acts > 80) << acts;
}

INSTANTIATE_TEST_SUITE_P(Strategies, ActsTest, testing::ValuesIn(kStrategies),
                         [](const auto& info) { return info.param.name; });

// What can be chosen by name can be made.
TEST(CatalogueTest, EveryNameIsKnownToItsFolder) {
  for (const auto& entry : manifest::Optimizers().entries) {
    const auto made = MakeOptimizer({.kind = std::string(entry.name)});
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(made->kind(), entry.name);
  }
  for (const auto& entry : manifest::Layers().entries) {
    manifest::Layer layer{.kind = std::string(entry.name), .name = "it"};
    const auto made = MakeLayer(layer);
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(made->kind(), entry.name);
  }
  for (const auto& entry : manifest::Losses().entries) {
    const train::Loss made = LossOf({.kind = std::string(entry.name)});
    ASSERT_NE(made.function, nullptr);
    // Some have a short name beside their own.
    const bool same = made.function->name() == entry.name;
    EXPECT_TRUE(same || entry.about == fmt::format("As {}.", made.function->name())) << entry.name;
  }
  for (const auto& entry : manifest::Metrics().entries) {
    const train::Metric made = MetricOf(std::string(entry.name));
    EXPECT_NE(made.of_batch, nullptr);
    EXPECT_EQ(made.name, entry.name);
  }
  for (const auto& entry : manifest::Sources().entries) {
    const data::SourceOptions made = SourceOf({.kind = std::string(entry.name)});
    EXPECT_EQ(std::holds_alternative<data::TextFile>(made), entry.name == "text");
    EXPECT_EQ(std::holds_alternative<data::IdxFiles>(made), entry.name == "idx");
  }
  std::vector<std::string_view> fields = {"program", "strategy", "checkpoint"};
  for (const auto& field : manifest::ProgramFields()) fields.push_back(field.name);
  EXPECT_THAT(manifest::BuiltInProgramFieldNames(), testing::UnorderedElementsAreArray(fields));
  for (const auto& entry : manifest::Layers().entries) {
    for (const auto& option : entry.options) {
      if (option.name != "activation") continue;
      EXPECT_EQ(option.words, nn::ActivationNames());
    }
  }
  EXPECT_EQ(manifest::kLabelName, train::kLabelName);
  for (const auto& entry : manifest::Sources().entries) {
    EXPECT_EQ(entry.components,
              (std::vector{std::string(train::kInputName), std::string(train::kLabelName)}));
  }
}

}  // namespace
}  // namespace meshtrain::recipe
