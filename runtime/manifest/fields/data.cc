// `data`: sources, stages, batches.
#include "runtime/base/text.h"
#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/fields/fields.h"

namespace meshtrain::manifest {
namespace {

// A source stands beside `take` under its own name: {idx: {...}, take: 5000}.
void ReadFrom(Fields& in, Source& source) {
  const Entry* chosen = nullptr;
  for (const Entry& entry : Sources().entries) {
    const Node* node = in.Get(entry.name);
    if (node == nullptr) continue;
    if (chosen != nullptr) {
      in.problems().Add(in.PlaceOf(entry.name), in.path(),
                        "expected one source, got: " + std::string(chosen->name) + " and " +
                            std::string(entry.name));
      return;
    }
    chosen = &entry;
    source.from = {.kind = std::string(entry.name),
                   .options = {},
                   .spot = {in.PlaceOf(entry.name), in.Path(entry.name)}};
    ReadFields(in.problems(), *node, source.from.spot.path, entry.options, &source.from.options);
  }
  if (chosen == nullptr && Sources().entries.size() == 1) {
    in.Need(Sources().entries[0].name);
  } else if (chosen == nullptr) {
    in.problems().Add(in.PlaceOf(""), in.path(),
                      "expected one of " + Join(Sources().names(), ", ") + ", got: none");
  }
}

std::vector<Field> SourceFields() {
  Field take = field::Int("take", &Source::take, {},
                          {.about = "At most so many examples, from the front; -1: all.",
                           .fallback = "-1",
                           .shows = Shows::kData,
                           .sample = "40"});
  take.read = [](Fields& in, void* out) {
    int64_t& count = static_cast<Source*>(out)->take;
    count = in.Int("take", -1, {.least = -1});
    if (count == 0) in.Wrong("take", "at least 1 example, or -1 for all");
  };
  take.type_text = "-1, or a whole number of at least 1";
  std::vector<Field> fields = {take};
  // A row for each kind of source; the first reads whichever is there.
  for (const Entry& entry : Sources().entries) {
    Field from{.name = entry.name, .type = FieldType::kChoice, .of = &Sources()};
    from.says = {.about = "Where the examples are, by the name of the kind of source.",
                 .fallback = "one source is required"};
    from.read = [](Fields&, void*) {};
    if (fields.size() == 1) {
      from.read = [](Fields& in, void* out) { ReadFrom(in, *static_cast<Source*>(out)); };
    }
    from.write = [&entry](const void* data) -> std::optional<Node> {
      const Choice& choice = static_cast<const Source*>(data)->from;
      if (choice.kind != entry.name) return std::nullopt;
      return WriteFields(entry.options, &choice.options);
    };
    fields.push_back(std::move(from));
  }
  return fields;
}

const std::vector<Field>& ShuffleFields() {
  static const std::vector<Field> kFields = {
      field::Required(field::Int(
          "buffer", &Shuffle::buffer, {.least = 1},
          {.about = "Examples that one is drawn from.", .shows = Shows::kData, .sample = "100"})),
      field::Int("seed", &Shuffle::seed, {},
                 {.about = "What the order follows from.",
                  .fallback = "the program's seed",
                  .shows = Shows::kData,
                  .sample = "7",
                  .context = "{data: {shuffle: {buffer: 10}}}"}),
      field::Bool("reshuffle", &Shuffle::reshuffle,
                  {.about = "Whether each pass has an order of its own.",
                   .fallback = "true",
                   .shows = Shows::kData,
                   .sample = "false",
                   .context = "{data: {shuffle: {buffer: 10}}}"})};
  return kFields;
}

void ReadShuffle(Fields& in, Data& data) {
  const Node* node = in.Get("shuffle");
  if (node == nullptr || node->AsBool() == false) return;
  ReadFields(in.problems(), *node, in.Path("shuffle"), ShuffleFields(), &data.shuffle.emplace());
}
std::optional<Node> WriteShuffle(const Data& data) {
  if (!data.shuffle) return std::nullopt;
  return WriteFields(ShuffleFields(), &*data.shuffle);
}

void ReadMap(Fields& in, Data& data) {
  const Node* node = in.Get("map");
  if (node == nullptr) return;
  if (!node->IsList()) return in.Wrong("map", "a list");
  for (size_t i = 0; i < node->list.size(); ++i) {
    auto op = ReadChoice(in.problems(), node->list[i],
                         in.Path("map") + "[" + std::to_string(i) + "]", MapOps());
    if (op) data.map.push_back(std::move(*op));
  }
}
std::optional<Node> WriteMap(const Data& data) {
  if (data.map.empty()) return std::nullopt;
  std::vector<Node> ops;
  for (const Choice& op : data.map) ops.push_back(WriteChoice(op, MapOps()));
  return Node::List(std::move(ops));
}

void ReadCache(Fields& in, Data& data) {
  data.cache = in.Bool("cache", true);
  if (data.cache) return;
  for (const Source* source : {&data.train, data.test ? &*data.test : nullptr}) {
    if (source == nullptr || source->from.kind == "image_folder") continue;
    in.Wrong("cache", "true (of the sources that there are image_folder alone can do without)");
    return;
  }
}
std::optional<Node> WriteCache(const Data& data) {
  if (data.cache) return std::nullopt;
  return field::ToNode(false);
}

// More passes would be more steps than a number holds.
constexpr int64_t kMostPasses = 1'000'000'000;
constexpr std::string_view kPasses =
    "true (for ever), false, or a whole number of at least 1 and of at most 1000000000";
// More batches ahead are memory that nothing waits for.
constexpr int64_t kMostAhead = 1024;
constexpr std::string_view kAhead = "auto, or a whole number of at least 0 and of at most 1024";

void ReadRepeat(Fields& in, Data& data) {
  const Node* repeat = in.Get("repeat");
  if (repeat == nullptr) return;
  if (const auto flag = repeat->AsBool()) {
    if (*flag) data.repeat = -1;
  } else if (const auto count = repeat->AsInt();
             count && *count != 0 && *count >= -1 && *count <= kMostPasses) {
    data.repeat = count;
  } else {
    in.Wrong("repeat", kPasses);
  }
}
std::optional<Node> WriteRepeat(const Data& data) {
  if (!data.repeat) return std::nullopt;
  return field::ToNode(*data.repeat);
}

void ReadPrefetch(Fields& in, Data& data) {
  const Node* prefetch = in.Get("prefetch");
  if (prefetch == nullptr || prefetch->scalar == "auto") return;
  if (const auto depth = prefetch->AsInt(); depth && *depth >= 0 && *depth <= kMostAhead) {
    data.prefetch = *depth;
  } else {
    in.Wrong("prefetch", kAhead);
  }
}
std::optional<Node> WritePrefetch(const Data& data) {
  if (data.prefetch < 0) return std::nullopt;
  return field::ToNode(data.prefetch);
}

}  // namespace

std::vector<Field> DataFields() {
  Field map = field::Own<Data>("map", "", ReadMap, WriteMap,
                               {.about = "What is done to the features, in order.",
                                .fallback = "nothing",
                                .shows = Shows::kData,
                                .sample = "[scale: 0.5]"});
  map.type = FieldType::kChoices;
  map.of = &MapOps();
  Field shuffle = field::Own<Data>(
      "shuffle", "false, or a map", ReadShuffle, WriteShuffle,
      {.about = "Another order of the training examples.", .fallback = "false"}, ShuffleFields());
  return {
      field::Required(field::Map("train", &Data::train, SourceFields(),
                                 {.about = "The examples to train on."})),
      field::Map("test", &Data::test, SourceFields(),
                 {.about = "The examples to validate and evaluate on; batches are as those of "
                           "`train`, in shape and type.",
                  .fallback = "none"}),
      map,
      shuffle,
      field::Required(
          field::Int("batch", &Data::batch, {.least = 1},
                     {.about = "Examples in a step, of all devices together.", .sample = "16"})),
      field::Bool("drop_remainder", &Data::drop_remainder,
                  {.about = "Whether training leaves a short last batch out; `test` and the "
                            "evaluator see every example.",
                   .fallback = "false",
                   .shows = Shows::kData,
                   .sample = "true"}),
      field::Bool("uneven", &Data::uneven,
                  {.about = "Whether a batch may be cut into shards of unequal size.",
                   .fallback = "false; true under strategies that make their own mesh",
                   .shows = Shows::kPermits,
                   .sample = "true",
                   .context = "{data: {batch: 33}}"}),
      field::Own<Data>("cache", "true; of image_folder also false", ReadCache, WriteCache,
                       {.about = "Decoded examples stay in memory.",
                        .fallback = "true",
                        .shows = Shows::kData,
                        .sample = "false"}),
      field::Own<Data>("repeat", kPasses, ReadRepeat, WriteRepeat,
                       {.about = "Passes that are one epoch together.",
                        .fallback = "false",
                        .shows = Shows::kData,
                        .sample = "2"}),
      field::Own<Data>("prefetch", kAhead, ReadPrefetch, WritePrefetch,
                       {.about = "Batches that are made ahead.",
                        .fallback = "auto",
                        .shows = Shows::kData,
                        .sample = "2"}),
  };
}

}  // namespace meshtrain::manifest
