// Files as MNIST's.
#include "runtime/data/idx.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/data/labels.h"
#include "runtime/data/sources/sources.h"

namespace meshtrain::data {
namespace {

using mesh::Tensor;
using mesh::TensorType;

class IdxSource final : public Source {
 public:
  IdxSource(const IdxFiles& files, std::vector<std::unique_ptr<IdxReader>> readers, int64_t size)
      : files_(files), size_(size) {
    for (auto& reader : readers) {
      element_.push_back(ElementOf(reader->type()));
      Column column;
      column.bytes_per_item = reader->bytes_per_item();
      column.whole = reader->type().dims[0] == size;
      // Uninitialised pages: only what is read becomes resident.
      column.elements = Tensor(TensorType{mesh::DType::kU8, {size * column.bytes_per_item}});
      column.reader = std::move(reader);
      columns_.push_back(std::move(column));
    }
  }
  int64_t size() const override { return size_; }
  const std::vector<TensorType>& element() const override { return element_; }

  Status Load(std::span<const int64_t> elements) override {
    const int64_t end = *std::max_element(elements.begin(), elements.end()) + 1;
    MT_CHECK(end <= size_);
    if (end <= ready_ || !error_.ok()) return error_;
    for (Column& column : columns_) {
      error_ = ReadTo(column, end);
      if (!error_.ok()) return error_;
    }
    ready_ = end;
    return OkStatus();
  }

  std::span<const std::byte> Row(int component, int64_t index) const override {
    MT_CHECK(index < ready_);
    const Column& column = columns_[component];
    return column.elements.bytes().subspan(static_cast<size_t>(index * column.bytes_per_item),
                                           static_cast<size_t>(column.bytes_per_item));
  }
  std::string file(int component) const override {
    return component == 0 ? files_.images : files_.labels;
  }
  std::optional<mesh::DType> labels_as() const override {
    return LabelType(files_.labels_as, element_[1].dtype);
  }

 private:
  struct Column {
    std::unique_ptr<IdxReader> reader;  // gone when all was read
    int64_t bytes_per_item = 0;
    bool whole = false;  // all of the file is wanted, so its end is checked too
    Tensor elements;
  };

  Status ReadTo(Column& column, int64_t end) {
    const int64_t from = ready_ * column.bytes_per_item;
    const int64_t to = end * column.bytes_per_item;
    MT_RETURN_IF_ERROR(column.reader->Read(column.elements.mutable_bytes().subspan(
        static_cast<size_t>(from), static_cast<size_t>(to - from))));
    if (end < size_) return OkStatus();
    if (column.whole) MT_RETURN_IF_ERROR(column.reader->Finish());
    column.reader.reset();
    return OkStatus();
  }

  const IdxFiles files_;
  int64_t size_;
  int64_t ready_ = 0;
  Status error_;
  std::vector<TensorType> element_;
  std::vector<Column> columns_;
};

}  // namespace

Result<std::unique_ptr<Source>> OpenIdx(const IdxFiles& files, int64_t take) {
  MT_ASSIGN_OR_RETURN(auto images, IdxReader::Open(files.images));
  MT_ASSIGN_OR_RETURN(auto labels, IdxReader::Open(files.labels));
  const int64_t count = images->type().dims[0];
  if (labels->type().rank() != 1) {
    return InvalidArgument(files.labels + ": byte 3: expected labels of 1 dimension, got: " +
                           labels->type().ToString() + " (is it the images' file?)");
  }
  if (labels->type().dims[0] != count) {
    return InvalidArgument(files.labels + ": byte 4: expected " + std::to_string(count) +
                           " labels, as many as images in " + files.images +
                           ", got: " + std::to_string(labels->type().dims[0]));
  }
  const int64_t size = Taken(count, take);
  if (size == 0 || images->bytes_per_item() == 0) {
    return InvalidArgument(files.images + ": byte 4: expected at least one element, got: " +
                           images->type().ToString() + (take == 0 ? ", of which 0 are taken" : ""));
  }
  // Or a gzip bomb with an honest header.
  if (size > MaxBytesInMemory() / images->bytes_per_item()) {
    return InvalidArgument(
        files.images + ": byte 4: expected at most " + HumanBytes(MaxBytesInMemory()) +
        " of elements, half of this machine's memory (`take` limits them), got: " +
        std::to_string(size) + " of " + HumanBytes(images->bytes_per_item()));
  }
  std::vector<std::unique_ptr<IdxReader>> readers;
  readers.push_back(std::move(images));
  readers.push_back(std::move(labels));
  return std::unique_ptr<Source>(std::make_unique<IdxSource>(files, std::move(readers), size));
}

namespace by_name {

SourceOptions Idx(const Options& options) {
  return IdxFiles{.images = options.Text("images"),
                  .labels = options.Text("labels"),
                  .labels_as = LabelsAs(options)};
}

}  // namespace by_name
}  // namespace meshtrain::data
