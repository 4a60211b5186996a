// How the built-in sources are opened: each has its own file here.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/choice/choice.h"
#include "runtime/data/source.h"

namespace meshtrain::data {

using choice::Options;

// As OpenSource.
Result<std::unique_ptr<Source>> OpenIdx(const IdxFiles& files, int64_t take);
Result<std::unique_ptr<Source>> OpenNpy(const NpyFiles& files, int64_t take);
// `cached`: images stay in memory once they are decoded.
Result<std::unique_ptr<Source>> OpenImageFolder(const ImageFolder& folder, int64_t take,
                                                bool cached);
Result<std::unique_ptr<Source>> OpenText(const TextFile& text, int64_t take);
Result<std::unique_ptr<Source>> OpenArrays(const MemoryArrays& arrays, int64_t take);

// The type of one of the elements that `whole` holds along its first dimension.
mesh::TensorType ElementOf(const mesh::TensorType& whole);
// `take` of `there` elements; -1: all.
int64_t Taken(int64_t there, int64_t take);

// Elements live in memory, so more than half of the machine's is a mistake.
int64_t MaxBytesInMemory();

// Which elements the last Load asked for, each once, in their order.
class LoadedElements {
 public:
  void Set(std::span<const int64_t> elements);
  const std::vector<int64_t>& all() const { return all_; }
  // One that was not loaded ends the program (MT_CHECK).
  size_t PlaceOf(int64_t element) const;

 private:
  std::vector<int64_t> all_;
};

// The option `labels_as`; nothing where it is not given.
std::optional<mesh::DType> LabelsAs(const Options& options);

// Makes a source's description of what the text gives. The options hold their rows' bounds. The
// maker of a source stands in its own file, as data::by_name::SOURCE; its row
// (manifest/catalogue/rows.h) declares it and runtime/recipe calls it.
using MakeSource = SourceOptions (*)(const Options& options);

}  // namespace meshtrain::data
