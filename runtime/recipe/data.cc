// `data` to pipelines.
#include "runtime/base/check.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {
namespace {

using manifest::Choice;
using manifest::Data;

data::SourceSpec SourceOf(const manifest::Source& source) {
  return {.from = recipe::SourceOf(source.from), .take = source.take};
}

struct MapRow {
  std::string_view kind;
  data::MapOp (*make)(const manifest::Options& options);
};
constexpr MapRow kMapOps[] = {
    {"scale",
     [](const manifest::Options& o) -> data::MapOp { return data::Scale{o.Number("scale", 1)}; }},
    {"normalize",
     [](const manifest::Options& o) -> data::MapOp {
       return data::Normalize{.mean = o.Numbers("mean").value_or(std::vector<double>{0}),
                              .deviation = o.Numbers("deviation").value_or(std::vector<double>{1})};
     }},
    {"cast",
     [](const manifest::Options& o) -> data::MapOp {
       return data::Cast{mesh::ParseDType(o.Text("cast")).value()};
     }},
    {"random_flip",
     [](const manifest::Options& o) -> data::MapOp {
       return data::RandomFlip{.horizontal = o.Bool("horizontal", true),
                               .vertical = o.Bool("vertical", false)};
     }},
    {"random_crop",
     [](const manifest::Options& o) -> data::MapOp {
       const auto size = o.Ints("size").value_or(std::vector<int64_t>{0, 0});
       return data::RandomCrop{
           {.height = size[0], .width = size[1], .padding = o.Int("padding", 0)}};
     }},
};

// Options that name a file or a folder, of any source.
constexpr std::string_view kFileOptions[] = {"images", "labels", "file", "folder"};
// An option that is a map to files.
constexpr std::string_view kMoreFiles = "more";

data::MapOp OpOf(const Choice& choice) {
  for (const MapRow& row : kMapOps) {
    if (row.kind == choice.kind) return row.make(choice.options);
  }
  MT_CHECK(false);  // a row that nothing makes
  return {};
}

data::MapStage MapOf(const manifest::Program& program, bool training) {
  data::MapStage map;
  for (const Choice& choice : program.data.map) {
    std::vector<data::MapOp> ops = {OpOf(choice)};
    if (!training) ops = data::ForEvaluation(std::move(ops));
    for (data::MapOp& op : ops) {
      map.ops.push_back(std::move(op));
      map.places.push_back(manifest::At(program.file, choice.spot.place, "") + choice.spot.path);
    }
  }
  if (training) map.seed = static_cast<uint64_t>(program.seed);
  return map;
}

void AddCommonStages(const Data& from, data::MapStage map, data::PipelineSpec* out) {
  if (!map.ops.empty()) out->stages.emplace_back(std::move(map));
  if (from.cache) out->stages.emplace_back(data::CacheStage{});
}
// Of examples that nothing is trained on.
void AddEvaluationStages(const manifest::Program& program, data::PipelineSpec* out) {
  AddCommonStages(program.data, MapOf(program, /*training=*/false), out);
}

}  // namespace

data::PipelineSpec TrainPipeline(const manifest::Program& program) {
  const Data& from = program.data;
  data::PipelineSpec out{.source = SourceOf(from.train)};
  AddCommonStages(from, MapOf(program, /*training=*/true), &out);
  if (from.shuffle) {
    const int64_t seed = from.shuffle->seed.value_or(program.seed);
    out.stages.emplace_back(data::ShuffleStage{.buffer = from.shuffle->buffer,
                                               .seed = static_cast<uint64_t>(seed),
                                               .reshuffle = from.shuffle->reshuffle});
  }
  out.stages.emplace_back(data::BatchStage{from.batch, from.drop_remainder});
  if (from.repeat) out.stages.emplace_back(data::RepeatStage{*from.repeat});
  if (from.prefetch != 0) out.stages.emplace_back(data::PrefetchStage{from.prefetch});
  return out;
}

data::PipelineSpec TestPipeline(const manifest::Program& program) {
  const Data& from = program.data;
  data::PipelineSpec out{.source = SourceOf(from.test.value_or(manifest::Source{}))};
  AddEvaluationStages(program, &out);
  // Every example is evaluated once, whatever `drop_remainder` says of training: dropping some
  // would change the figures with the batch size.
  out.stages.emplace_back(data::BatchStage{from.batch, /*drop_remainder=*/false});
  if (from.prefetch != 0) out.stages.emplace_back(data::PrefetchStage{from.prefetch});
  return out;
}

data::PipelineSpec PredictPipeline(const manifest::Program& program, data::MemoryArrays features) {
  data::PipelineSpec out{.source = {.from = std::move(features)}};
  AddEvaluationStages(program, &out);
  out.stages.emplace_back(
      data::BatchStage{manifest::PartOfBatch(program), /*drop_remainder=*/false});
  return out;
}

Status MoveTestData(const std::string& folder, manifest::Program* program) {
  if (!program->data.test) {
    return InvalidArgument(program->Where("data.test") + ": expected test data, got: none");
  }
  Choice& source = program->data.test->from;
  bool moved = false;
  const auto move = [&](manifest::Options& options, std::string_view option) {
    std::string file = options.Text(option);
    while (file.ends_with('/')) file.pop_back();
    if (file.empty()) return;
    options.Set(option, folder + "/" + file.substr(file.rfind('/') + 1));
    moved = true;
  };
  for (const std::string_view option : kFileOptions) move(source.options, option);
  if (const Choice* given = source.options.Chosen(kMoreFiles)) {
    Choice more = *given;
    for (const std::string& name : more.options.names()) move(more.options, name);
    source.options.Set(kMoreFiles, std::vector<Choice>{std::move(more)});
  }
  if (moved) return OkStatus();
  return InvalidArgument(
      program->Where("data.test") +
      ": expected a source of files (idx, npy, image_folder, text), got: " + source.kind);
}

}  // namespace meshtrain::recipe
