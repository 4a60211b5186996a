// `data`, and the pipelines that it describes.
#include <algorithm>

#include "runtime/spec/parse.h"

namespace meshtrain::spec {
namespace {

mesh::DType ParseType(Fields& fields, std::string_view key, mesh::DType fallback,
                      const std::vector<std::string>& choices) {
  const auto type = mesh::ParseDType(fields.Choice(key, choices, mesh::DTypeName(fallback)));
  return type.ok() ? *type : fallback;
}

data::SourceSpec ParseSource(Problems& problems, const Node& node, const std::string& path) {
  data::SourceSpec source;
  Fields fields(problems, node, path);
  source.take = fields.Int("take", -1, -1);
  if (source.take == 0) fields.Wrong("take", "at least 1 example, or -1 for all");
  data::IdxFiles files;
  if (const Node* idx = fields.Need("idx")) {
    Fields f(problems, *idx, fields.Path("idx"));
    files.images = f.NeedText("images");
    files.labels = f.NeedText("labels");
    if (f.Get("labels_as") != nullptr) {
      files.labels_as = ParseType(f, "labels_as", mesh::DType::kI32, {"i32", "i64", "f32", "f64"});
    }
  }
  source.from = files;
  return source;
}

std::vector<data::MapOp> ParseMap(Problems& problems, const Node& node, const std::string& path) {
  static const std::vector<std::string> kKnown = {"scale", "normalize", "cast"};
  std::vector<data::MapOp> ops;
  if (!node.IsList()) {
    problems.Add(node.place, path, "expected a list, got: " + node.Describe());
    return ops;
  }
  for (size_t i = 0; i < node.list.size(); ++i) {
    const Node& entry = node.list[i];
    const std::string at = path + "[" + std::to_string(i) + "]";
    if (!entry.IsMap() || entry.members.size() != 1) {
      problems.Add(
          entry.place, at,
          "expected one of scale, normalize, cast with its value, got: " + entry.Describe());
      continue;
    }
    Fields fields(problems, entry, at, "map");
    const std::string& kind = entry.members[0].key;
    if (kind == "scale") {
      ops.emplace_back(data::Scale{fields.Number("scale", 1)});
    } else if (kind == "cast") {
      ops.emplace_back(data::Cast{
          ParseType(fields, "cast", mesh::DType::kF32, {"f32", "f64", "i32", "i64", "u8"})});
    } else if (kind == "normalize") {
      if (const Node* value = fields.Get("normalize")) {
        Fields f(problems, *value, fields.Path("normalize"), "option");
        data::Normalize normalize{.mean = f.Number("mean", 0),
                                  .deviation = f.Number("deviation", 1)};
        if (normalize.deviation == 0) f.Wrong("deviation", "a number that is not 0");
        ops.emplace_back(normalize);
      }
    } else {
      for (const std::string& known : kKnown) {
        fields.Get(known);  // so that the complaint knows them
      }
    }
  }
  return ops;
}

void AddCommonStages(const DataSpec& data, data::PipelineSpec* out) {
  if (!data.map.empty()) out->stages.emplace_back(data::MapStage{data.map, 0});
  if (data.cache) out->stages.emplace_back(data::CacheStage{});
}

}  // namespace

DataSpec ParseData(Problems& problems, const Node& node, const std::string& path, int64_t seed) {
  DataSpec data;
  Fields fields(problems, node, path);
  if (const Node* train = fields.Need("train")) {
    data.train = ParseSource(problems, *train, fields.Path("train"));
  }
  if (const Node* test = fields.Get("test")) {
    data.test = ParseSource(problems, *test, fields.Path("test"));
  }
  if (const Node* map = fields.Get("map")) data.map = ParseMap(problems, *map, fields.Path("map"));
  if (const Node* shuffle = fields.Get("shuffle");
      shuffle != nullptr && shuffle->AsBool() != false) {
    Fields f(problems, *shuffle, fields.Path("shuffle"));
    data::ShuffleStage stage;
    if (f.Need("buffer") != nullptr) stage.buffer = f.Int("buffer", 1, 1);
    stage.seed = static_cast<uint64_t>(f.Int("seed", seed));
    stage.reshuffle = f.Bool("reshuffle", true);
    data.shuffle = stage;
  }
  data.cache = fields.Bool("cache", true);
  if (const Node* repeat = fields.Get("repeat")) {
    if (repeat->AsBool()) {
      if (*repeat->AsBool()) data.repeat = -1;
    } else if (const auto count = repeat->AsInt(); count && (*count >= 1 || *count == -1)) {
      data.repeat = count;
    } else {
      fields.Wrong("repeat", "true (for ever), false, or a whole number of at least 1");
    }
  }
  if (const Node* prefetch = fields.Get("prefetch");
      prefetch != nullptr && prefetch->scalar != "auto") {
    const auto depth = prefetch->AsInt();
    if (depth && *depth >= 0) {
      data.prefetch = *depth;
    } else {
      fields.Wrong("prefetch", "auto, or a whole number of at least 0");
    }
  }
  if (fields.Need("batch") != nullptr) data.batch = fields.Int("batch", 1, 1);
  data.drop_remainder = fields.Bool("drop_remainder", false);
  data.uneven = fields.Bool("uneven", false);
  return data;
}

data::PipelineSpec TrainPipeline(const DataSpec& data) {
  data::PipelineSpec out{.source = data.train};
  AddCommonStages(data, &out);
  if (data.shuffle) out.stages.emplace_back(*data.shuffle);
  out.stages.emplace_back(data::BatchStage{data.batch, data.drop_remainder});
  if (data.repeat) out.stages.emplace_back(data::RepeatStage{*data.repeat});
  if (data.prefetch != 0) out.stages.emplace_back(data::PrefetchStage{data.prefetch});
  return out;
}

data::PipelineSpec TestPipeline(const DataSpec& data) {
  data::PipelineSpec out{.source = data.test.value_or(data::SourceSpec{})};
  AddCommonStages(data, &out);
  // Every example is evaluated once, whatever `drop_remainder` says of training: dropping some
  // would change the figures with the batch size.
  out.stages.emplace_back(data::BatchStage{data.batch, /*drop_remainder=*/false});
  if (data.prefetch != 0) out.stages.emplace_back(data::PrefetchStage{data.prefetch});
  return out;
}

}  // namespace meshtrain::spec
