// Arrays as numpy.save leaves them.
#include "runtime/data/npy.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/data/labels.h"
#include "runtime/data/sources/sources.h"

namespace meshtrain::data {
namespace {

using mesh::TensorType;

struct Array {
  std::string path;
  FileDescriptor file;
  NpyHead head;
};

Result<Array> OpenArray(const std::string& path) {
  Array array{.path = path, .file = {}, .head = {}};
  MT_ASSIGN_OR_RETURN(array.file, OpenFile(path, O_RDONLY));
  struct stat info {};
  if (::fstat(array.file.get(), &info) != 0) return ErrnoStatus(errno, "cannot stat", path);
  std::string front(static_cast<size_t>(std::min<int64_t>(info.st_size, kMaxNpyHead)), '\0');
  MT_ASSIGN_OR_RETURN(const size_t n,
                      ReadAt(array.file, 0, std::as_writable_bytes(std::span(front)), path));
  front.resize(n);
  MT_ASSIGN_OR_RETURN(array.head, ParseNpyHead(front, info.st_size, path));
  if (array.head.type.rank() == 0) {
    return InvalidArgument(path + ": expected an array of examples, [N, ...], got: one number");
  }
  return array;
}

class NpySource final : public Source {
 public:
  NpySource(NpyFiles files, std::vector<Array> arrays, int64_t size)
      : files_(std::move(files)), size_(size), arrays_(std::move(arrays)), rows_(arrays_.size()) {
    for (const Array& array : arrays_) element_.push_back(ElementOf(array.head.type));
  }
  int64_t size() const override { return size_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> names = ComponentNames(2);
    for (const NamedFile& one : files_.more) names.push_back(one.name);
    return names;
  }
  const std::vector<TensorType>& element() const override { return element_; }

  Status Load(std::span<const int64_t> elements) override {
    loaded_.Set(elements);
    const std::vector<int64_t>& all = loaded_.all();
    for (size_t c = 0; c < arrays_.size(); ++c) {
      const auto bytes = static_cast<size_t>(element_[c].num_bytes());
      rows_[c].resize(all.size() * bytes);
      // What follows each other in the file is read at once.
      for (size_t begin = 0, end; begin < all.size(); begin = end) {
        end = begin + 1;
        while (end < all.size() && all[end] == all[end - 1] + 1) ++end;
        const auto into = std::span(rows_[c]).subspan(begin * bytes, (end - begin) * bytes);
        MT_RETURN_IF_ERROR(ReadRows(static_cast<int>(c), all[begin], into));
      }
    }
    return OkStatus();
  }

  std::span<const std::byte> Row(int component, int64_t index) const override {
    const auto bytes = static_cast<size_t>(element_[component].num_bytes());
    return std::span(rows_[component]).subspan(loaded_.PlaceOf(index) * bytes, bytes);
  }
  std::string file(int component) const override { return arrays_[component].path; }
  std::optional<mesh::DType> labels_as() const override {
    return LabelType(files_.labels_as, element_[1].dtype);
  }

 private:
  // The elements from `first` on that `out` takes.
  Status ReadRows(int component, int64_t first, std::span<std::byte> out) const {
    const Array& array = arrays_[component];
    const int64_t at = array.head.begin + first * element_[component].num_bytes();
    MT_ASSIGN_OR_RETURN(const size_t n, ReadAt(array.file, at, out, array.path));
    if (n < out.size()) {
      return DataLoss(array.path + ": byte " + std::to_string(at + static_cast<int64_t>(n)) +
                      ": expected the array as it was opened, " + array.head.type.ToString() +
                      ", got: its end");
    }
    if (array.head.type.dtype != mesh::DType::kBool) return OkStatus();
    const auto wrong = std::find_if(out.begin(), out.end(),
                                    [](std::byte b) { return std::to_integer<int>(b) > 1; });
    if (wrong == out.end()) return OkStatus();
    return DataLoss(
        array.path + ": byte " + std::to_string(at + (wrong - out.begin())) +
        ": expected a bool, 0 or 1, got: " + std::to_string(std::to_integer<int>(*wrong)));
  }

  const NpyFiles files_;
  const int64_t size_;
  const std::vector<Array> arrays_;
  std::vector<TensorType> element_;
  LoadedElements loaded_;
  std::vector<std::vector<std::byte>> rows_;  // by component
};

}  // namespace

Result<std::unique_ptr<Source>> OpenNpy(const NpyFiles& files, int64_t take) {
  std::vector<std::string> paths = {files.images, files.labels};
  for (const NamedFile& one : files.more) paths.push_back(one.file);
  std::vector<Array> arrays;
  for (const std::string& path : paths) {
    MT_ASSIGN_OR_RETURN(arrays.emplace_back(), OpenArray(path));
    const int64_t count = arrays[0].head.type.dims[0];
    if (arrays.back().head.type.dims[0] == count) continue;
    return InvalidArgument(path + ": expected " + std::to_string(count) +
                           (arrays.size() == 2 ? " labels" : " elements") +
                           ", as many as examples in " + files.images +
                           ", got: " + arrays.back().head.type.ToString());
  }
  const int64_t size = Taken(arrays[0].head.type.dims[0], take);
  for (const Array& array : arrays) {
    if (size > 0 && ElementOf(array.head.type).num_elements() > 0) continue;
    return InvalidArgument(array.path +
                           ": expected at least one element, got: " + array.head.type.ToString() +
                           (take == 0 ? ", of which 0 are taken" : ""));
  }
  return std::unique_ptr<Source>(std::make_unique<NpySource>(files, std::move(arrays), size));
}

namespace by_name {

SourceOptions Npy(const Options& options) {
  NpyFiles files{.images = options.Text("images"),
                 .labels = options.Text("labels"),
                 .labels_as = LabelsAs(options)};
  if (const choice::Choice* more = options.Chosen("more")) {
    for (const std::string& name : more->options.names()) {
      files.more.push_back({name, more->options.Text(name)});
    }
  }
  return files;
}

}  // namespace by_name
}  // namespace meshtrain::data
