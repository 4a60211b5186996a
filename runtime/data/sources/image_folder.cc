// PNG images in a folder for each class.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/data/png.h"
#include "runtime/data/sources/sources.h"

namespace meshtrain::data {
namespace {

using mesh::Tensor;
using mesh::TensorType;
namespace fs = std::filesystem;

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

struct Image {
  std::string path;
  int32_t label = 0;
};
struct Folder {
  std::vector<std::string> classes;
  std::vector<Image> images;
};

class ImageFolderSource final : public Source {
 public:
  ImageFolderSource(std::string path, Folder folder, const TensorType& image, bool cached)
      : path_(std::move(path)),
        classes_(std::move(folder.classes)),
        images_(std::move(folder.images)),
        element_{image, {mesh::DType::kI32, {}}} {
    if (!cached) return;
    // Uninitialised pages: only what is decoded becomes resident.
    kept_ = Tensor(TensorType{mesh::DType::kU8, {size() * image.num_bytes()}});
    is_kept_.resize(images_.size());
  }
  int64_t size() const override { return static_cast<int64_t>(images_.size()); }
  const std::vector<TensorType>& element() const override { return element_; }

  Status Load(std::span<const int64_t> elements) override {
    loaded_.Set(elements);
    const auto bytes = static_cast<size_t>(element_[0].num_bytes());
    if (!kept_) pixels_.resize(loaded_.all().size() * bytes);
    for (size_t i = 0; i < loaded_.all().size(); ++i) {
      const auto element = static_cast<size_t>(loaded_.all()[i]);
      if (!kept_) {
        MT_RETURN_IF_ERROR(Decode(element, std::span(pixels_).subspan(i * bytes, bytes)));
      } else if (!is_kept_[element]) {
        MT_RETURN_IF_ERROR(
            Decode(element, kept_->mutable_values<uint8_t>().subspan(element * bytes, bytes)));
        is_kept_[element] = true;
      }
    }
    return OkStatus();
  }

  std::span<const std::byte> Row(int component, int64_t index) const override {
    const size_t place = loaded_.PlaceOf(index);
    if (component == 1) {
      return std::as_bytes(std::span(&images_[static_cast<size_t>(index)].label, 1));
    }
    const auto bytes = static_cast<size_t>(element_[0].num_bytes());
    if (kept_) return kept_->bytes().subspan(static_cast<size_t>(index) * bytes, bytes);
    return std::as_bytes(std::span(pixels_)).subspan(place * bytes, bytes);
  }
  std::string file(int /*component*/) const override { return path_; }
  std::vector<std::string> classes() const override { return classes_; }

 private:
  Status Decode(size_t element, std::span<uint8_t> out) const {
    const std::string& path = images_[element].path;
    MT_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxFileBytes));
    MT_ASSIGN_OR_RETURN(const auto reader, PngReader::Create(bytes, path));
    const mesh::Dims& dims = element_[0].dims;
    if (reader->height() != dims[0] || reader->width() != dims[1]) {
      return InvalidArgument(path + ": byte 16: expected " + std::to_string(dims[0]) + " rows of " +
                             std::to_string(dims[1]) + " pixels, as " + images_[0].path +
                             " has, got: " + std::to_string(reader->height()) + " of " +
                             std::to_string(reader->width()));
    }
    return reader->Decode(dims[2], out);
  }

  const std::string path_;
  const std::vector<std::string> classes_;
  const std::vector<Image> images_;
  const std::vector<TensorType> element_;
  LoadedElements loaded_;
  // All that were decoded so far; or those that were loaded, one behind the other.
  std::optional<Tensor> kept_;
  std::vector<bool> is_kept_;
  std::vector<uint8_t> pixels_;
};

// What lies in a folder, by name, without what is hidden.
Result<std::vector<fs::directory_entry>> EntriesOf(const std::string& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().starts_with('.')) entries.push_back(*it);
  }
  if (error) return ErrnoStatus(error.value(), "cannot read the folder", folder);
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.path().filename().string() < b.path().filename().string();
  });
  return entries;
}

bool IsFolder(const fs::directory_entry& entry) {
  std::error_code ignored;
  return entry.is_directory(ignored);
}

bool IsPng(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  return extension == ".png";
}

Result<Folder> Read(const std::string& folder) {
  MT_ASSIGN_OR_RETURN(const auto classes, EntriesOf(folder));
  Folder found;
  for (const fs::directory_entry& one : classes) {
    if (!IsFolder(one)) {
      if (!IsPng(one.path())) continue;
      return InvalidArgument(folder + ": expected a folder for each class, got: the image " +
                             Printable(one.path().filename().string()));
    }
    MT_ASSIGN_OR_RETURN(const auto files, EntriesOf(one.path().string()));
    for (const fs::directory_entry& file : files) {
      if (IsFolder(file) || !IsPng(file.path())) {
        return InvalidArgument(Printable(one.path().string()) + ": expected .png files, got: " +
                               (IsFolder(file) ? "the folder " : "") +
                               Printable(file.path().filename().string()));
      }
      found.images.push_back({file.path().string(), static_cast<int32_t>(found.classes.size())});
    }
    found.classes.push_back(one.path().filename().string());
  }
  return found;
}

}  // namespace

Result<std::unique_ptr<Source>> OpenImageFolder(const ImageFolder& folder, int64_t take,
                                                bool cached) {
  if (folder.channels != 1 && folder.channels != 3 && folder.channels != 4) {
    return InvalidArgument("data: image_folder: expected 1, 3 or 4 channels, got: " +
                           std::to_string(folder.channels));
  }
  MT_ASSIGN_OR_RETURN(Folder found, Read(folder.folder));
  std::vector<Image>& images = found.images;
  const int64_t size = Taken(static_cast<int64_t>(images.size()), take);
  if (size == 0) {
    return InvalidArgument(folder.folder +
                           ": expected at least one .png file in a class's folder, got: none" +
                           (take == 0 ? ", of which 0 are taken" : ""));
  }
  images.resize(static_cast<size_t>(size));
  // The first says what all are like.
  MT_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(images[0].path, kMaxFileBytes));
  MT_ASSIGN_OR_RETURN(const auto first, PngReader::Create(bytes, images[0].path));
  const TensorType image{mesh::DType::kU8, {first->height(), first->width(), folder.channels}};
  if (cached && size > MaxBytesInMemory() / image.num_bytes()) {
    return InvalidArgument(folder.folder + ": expected at most " + HumanBytes(MaxBytesInMemory()) +
                           " of images to keep, half of this machine's memory (`cache: false` "
                           "decodes them anew in each pass), got: " +
                           std::to_string(size) + " of " + HumanBytes(image.num_bytes()));
  }
  return std::unique_ptr<Source>(
      std::make_unique<ImageFolderSource>(folder.folder, std::move(found), image, cached));
}

namespace by_name {

SourceOptions ImageFolder(const Options& options) {
  const std::string mode = options.Text("color_mode", "rgb");
  return data::ImageFolder{.folder = options.Text("folder"),
                           .channels = mode == "grayscale" ? 1
                                       : mode == "rgba"    ? 4
                                                           : 3};
}

}  // namespace by_name
}  // namespace meshtrain::data
