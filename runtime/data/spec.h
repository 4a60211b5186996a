// What the manifest's `program.data` says, as plain values: a source and the stages its elements
// pass, in order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/shape.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::data {

// Elements (image, label). What was read stays in memory, for such files are mostly compressed and
// have no beginning but the first: what does not fit there is for NpyFiles.
struct IdxFiles {
  std::string images;
  std::string labels;
  // The type of labels in batches; none: the file's (u8 as i32). A label that it would cut is an
  // error.
  std::optional<mesh::DType> labels_as = {};
};

// A component of its own name.
struct NamedFile {
  std::string name;
  std::string file;
};

// Elements (image, label) of arrays as numpy.save leaves them, which share their first dimension,
// and behind those two a component of each of `more`, in the file's type. A label may be an array
// too. Nothing is kept: each batch is read by itself.
struct NpyFiles {
  std::string images;
  std::string labels;
  std::optional<mesh::DType> labels_as = {};  // as IdxFiles
  std::vector<NamedFile> more = {};           // other inputs, labels of other outputs
};

// Elements (image u8[height, width, channels], class i32) of the PNG files in a folder that has a
// folder for each class. Classes are numbered by their folders' names, from 0, and examples are in
// the order of classes and then of files' names. An image is decoded when a batch needs it.
struct ImageFolder {
  std::string folder;
  int64_t channels = 3;  // 1: grey, 3: red, green, blue, 4: and alpha
};

// Elements (x, y) u8[length], windows of a plain text: x the numbers of its characters (bytes), y
// those of the characters that follow each. y becomes i32 in batches. Nothing is kept, as of
// NpyFiles.
//   "hello", length 2 -> "he" "el", "ll" "lo"; with stride 1 also "el" "ll"
struct TextFile {
  std::string file;
  int64_t length = 0;
  int64_t stride = 0;  // from the start of a window to that of the next; 0: length
  // Character i has the number i, and another one is an error; "": a byte is its own number.
  std::string alphabet = {};
  // The share of the text, at its end, that is the part for validation; and which part this is. No
  // window lies in both.
  double validation_split = 0;
  bool validation = false;
};

// Elements cut from the first dimension, which all components share.
struct MemoryArrays {
  std::vector<mesh::Tensor> components;
  std::string file = {};                // what errors call it
  std::vector<std::string> names = {};  // of the components; none: ComponentNames
};

class Source;  // source.h

// A source of one's own. It is opened in this process, so parameter servers' workers, which read
// their data themselves, refuse it.
struct OwnSource {
  std::string name;  // "waves": what errors call it
  // Gives at most `take` elements, from the front; -1: all. Errors: the source's.
  std::function<Result<std::unique_ptr<Source>>(int64_t take)> open;
};

using SourceOptions =
    std::variant<IdxFiles, MemoryArrays, TextFile, NpyFiles, ImageFolder, OwnSource>;
struct SourceSpec {
  SourceOptions from;
  int64_t take =
      -1;  // at most so many elements, from the front; -1: all. Nothing behind them is read.
  // Of those the elements first, first + every, ... are this source's.
  int64_t first = 0, every = 1;
  bool cached = false;  // as CacheStage; Pipeline::Create sets it
};

// x * factor, in f32 (f64 stays f64). A factor that is 1/n for a whole n (0.00392156862745098 =
// 1/255) divides by n instead: bit for bit x / 255.0f, which is what people mean.
struct Scale {
  double factor = 1;
};
// (x - mean) / deviation, in f32 (f64 stays f64). One number for all values, or one for each place
// in the last dimension of an element: of images [height, width, channels], for each channel.
struct Normalize {
  std::vector<double> mean = {0};
  std::vector<double> deviation = {1};
};
// Towards zero, saturating, where a float becomes an integer.
struct Cast {
  mesh::DType to = mesh::DType::kF32;
};

// The others are of images, [height, width] or [height, width, channels], and move values without
// changing any. What they draw is said in augment.h.

// Left and right change places, or top and bottom, each for one image in two.
struct RandomFlip {
  bool horizontal = true;
  bool vertical = false;
};
// What is cut out of an image that has `padding` rows and columns of zeros on each side.
struct Window {
  int64_t height = 0, width = 0;
  int64_t padding = 0;
};
// The window, anywhere: each place is as likely.
struct RandomCrop {
  Window window;
};
// The window in the middle; of two middles the one further up or left.
struct CenterCrop {
  Window window;
};
using MapOp = std::variant<Scale, Normalize, Cast, RandomFlip, RandomCrop, CenterCrop>;

struct MapStage {
  std::vector<MapOp> ops;  // in order
  int component = 0;       // the features
  // What random ops draw from. Those of one stage draw independently of each other; the same op of
  // another component with the same seed draws the same, so that an image and its mask stay one.
  uint64_t seed = 0;
  // Where a manifest asks for each of the ops: "job.yaml:5:11: program.data.map[0].scale". An op
  // that does not fit the data is then the manifest's mistake (Origin::kManifest), told by that.
  // Empty: nobody says.
  std::vector<std::string> places = {};
};
// The ops for examples on which a model is evaluated: nothing is random. A flip is left out, a
// random crop becomes the one in the middle.
std::vector<MapOp> ForEvaluation(std::vector<MapOp> ops);
// Decoded elements stay in memory, in their stored type (an u8 takes a quarter of its mapped f32,
// and mapping it is one table look-up). Without it an ImageFolder decodes an image each time; idx
// files and texts are kept in any case, and arrays of numpy's, in which nothing is to decode,
// never.
struct CacheStage {};
// tf.data's algorithm: a buffer filled from the input; draw one uniformly, put the next input in
// its place. Another order in each pass unless `reshuffle` is false. Equal (seed, pass) give equal
// orders on every machine.
struct ShuffleStage {
  int64_t buffer = 0;  // in what flows here: elements before `batch`, batches after it
  uint64_t seed = 0;
  bool reshuffle = true;
};
// Exactly once in a pipeline.
struct BatchStage {
  int64_t size = 0;  // global
  bool drop_remainder = false;
};
struct RepeatStage {
  int64_t count = -1;  // -1: for ever
};
struct PrefetchStage {
  int64_t depth = -1;  // batches made ahead by a thread; -1: auto
};
using Stage =
    std::variant<MapStage, CacheStage, ShuffleStage, BatchStage, RepeatStage, PrefetchStage>;

struct PipelineSpec {
  SourceSpec source;
  std::vector<Stage> stages;                    // in the order in which elements pass them
  std::map<std::string, int64_t> classes = {};  // as Pipeline::ExpectClasses
  // The component that Source::labels_as is about, where there is one of the name.
  std::string labels = "y";
  std::map<std::string, int64_t> rows = {};  // as Pipeline::ExpectIds
};

// What components are called where nobody names them: x, y, component_2, component_3, ...
std::vector<std::string> ComponentNames(size_t count);

}  // namespace meshtrain::data
