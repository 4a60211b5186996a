// Windows of a plain text. Only those that a batch asks for are read, so a process reads its own
// share of the file, whatever its size, and holds one batch of it.
#include "runtime/base/text.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/data/sources/sources.h"

namespace meshtrain::data {
namespace {

using mesh::TensorType;

// "`a`", or for what a terminal does not show "0x0a".
std::string CharacterText(uint8_t byte) {
  if (byte > ' ' && byte < 0x7f) return "`" + std::string(1, static_cast<char>(byte)) + "`";
  char text[8];
  std::snprintf(text, sizeof text, "0x%02x", byte);
  return text;
}

// The number of each byte; -1: it has none.
using Numbers = std::array<int16_t, 256>;

Result<Numbers> NumbersOf(const std::string& alphabet) {
  Numbers numbers;
  if (alphabet.empty()) {
    for (size_t byte = 0; byte < numbers.size(); ++byte) numbers[byte] = static_cast<int16_t>(byte);
    return numbers;
  }
  numbers.fill(-1);
  for (size_t i = 0; i < alphabet.size(); ++i) {
    const auto byte = static_cast<uint8_t>(alphabet[i]);
    if (numbers[byte] >= 0) {
      return InvalidArgument("data: text: expected each character of `alphabet` once, got: " +
                             CharacterText(byte) + " again at byte " + std::to_string(i));
    }
    numbers[byte] = static_cast<int16_t>(i);
  }
  return numbers;
}

// What of the file the windows lie in.
struct Part {
  int64_t begin = 0, end = 0;
};

class TextSource final : public Source {
 public:
  TextSource(TextFile text, FileDescriptor file, const Numbers& numbers, int64_t begin,
             int64_t size)
      : text_(std::move(text)),
        file_(std::move(file)),
        numbers_(numbers),
        begin_(begin),
        size_(size),
        element_(2, TensorType{mesh::DType::kU8, {text_.length}}) {}

  int64_t size() const override { return size_; }
  const std::vector<TensorType>& element() const override { return element_; }

  Status Load(std::span<const int64_t> elements) override {
    loaded_.Set(elements);
    const std::vector<int64_t>& all = loaded_.all();
    windows_.resize(all.size() * WindowBytes());
    for (size_t i = 0; i < all.size(); ++i) {
      MT_RETURN_IF_ERROR(
          Read(all[i], std::span(windows_).subspan(i * WindowBytes(), WindowBytes())));
    }
    return OkStatus();
  }

  std::span<const std::byte> Row(int component, int64_t index) const override {
    const size_t at = loaded_.PlaceOf(index) * WindowBytes() + static_cast<size_t>(component);
    return std::as_bytes(std::span(windows_).subspan(at, static_cast<size_t>(text_.length)));
  }
  std::string file(int /*component*/) const override { return text_.file; }
  std::optional<mesh::DType> labels_as() const override { return mesh::DType::kI32; }
  // The character that each number stands for.
  std::vector<std::string> classes() const override {
    std::vector<std::string> characters;
    for (const char c : text_.alphabet) characters.emplace_back(1, c);
    if (!characters.empty()) return characters;
    for (int byte = 0; byte < 256; ++byte) characters.emplace_back(1, static_cast<char>(byte));
    return characters;
  }

 private:
  // A window and the character that follows it.
  size_t WindowBytes() const { return static_cast<size_t>(text_.length) + 1; }

  // The characters of one window, as numbers.
  Status Read(int64_t element, std::span<uint8_t> window) const {
    const int64_t at = begin_ + element * text_.stride;
    MT_ASSIGN_OR_RETURN(const size_t n,
                        ReadAt(file_, at, std::as_writable_bytes(window), text_.file));
    for (size_t i = 0; i < n; ++i) {
      uint8_t& byte = window[i];
      const int16_t number = numbers_[byte];
      if (number < 0) {
        return InvalidArgument(text_.file + ": byte " +
                               std::to_string(at + static_cast<int64_t>(i)) +
                               ": expected one of the " + std::to_string(text_.alphabet.size()) +
                               " characters of `alphabet`, got: " + CharacterText(byte));
      }
      byte = static_cast<uint8_t>(number);
    }
    if (n == window.size()) return OkStatus();
    return DataLoss(text_.file + ": byte " + std::to_string(at + static_cast<int64_t>(n)) +
                    ": expected the text as it was opened, got: its end");
  }

  const TextFile text_;
  const FileDescriptor file_;
  const Numbers numbers_;
  const int64_t begin_, size_;
  const std::vector<TensorType> element_;
  LoadedElements loaded_;
  std::vector<uint8_t> windows_;  // of the loaded elements
};

Status Check(const TextFile& text) {
  if (text.length < 1 || text.length > (int64_t{1} << 30)) {
    return InvalidArgument("data: text: expected a length of 1 to 2^30 characters, got: " +
                           std::to_string(text.length));
  }
  if (text.stride < 1) {
    return InvalidArgument("data: text: expected a stride of at least 1, got: " +
                           std::to_string(text.stride));
  }
  if (!(text.validation_split >= 0 && text.validation_split < 1)) {
    return InvalidArgument(
        "data: text: expected a validation_split of at least 0 and below 1, "
        "got: " +
        std::to_string(text.validation_split));
  }
  if (text.validation && text.validation_split == 0) {
    return InvalidArgument(
        "data: text: expected a validation_split beside subset: validation, got: none");
  }
  return OkStatus();
}

// Compressed text would be trained on as it lies there.
Status CheckPlain(const FileDescriptor& file, const std::string& path) {
  uint8_t head[2] = {};
  MT_ASSIGN_OR_RETURN(const size_t n,
                      ReadAt(file, 0, std::as_writable_bytes(std::span(head)), path));
  if (n == 2 && head[0] == 0x1f && head[1] == 0x8b) {
    return InvalidArgument(path + ": byte 0: expected a plain text, got: a gzip file (unpack it)");
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<Source>> OpenText(const TextFile& given, int64_t take) {
  TextFile text = given;
  if (text.stride == 0) text.stride = text.length;
  MT_RETURN_IF_ERROR(Check(text));
  MT_ASSIGN_OR_RETURN(const Numbers numbers, NumbersOf(text.alphabet));
  MT_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(text.file, O_RDONLY));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, "cannot stat", text.file);
  MT_RETURN_IF_ERROR(CheckPlain(file, text.file));
  const auto bytes = static_cast<int64_t>(info.st_size);
  const auto kept =
      static_cast<int64_t>(std::floor(static_cast<double>(bytes) * text.validation_split));
  const Part part = text.validation ? Part{bytes - kept, bytes} : Part{0, bytes - kept};
  // One more than a window: the character that follows its last.
  const int64_t there = part.end - part.begin <= text.length
                            ? 0
                            : (part.end - part.begin - 1 - text.length) / text.stride + 1;
  const int64_t size = Taken(there, take);
  if (size == 0) {
    return InvalidArgument(
        text.file + ": byte " + std::to_string(part.begin) + ": expected at least " +
        std::to_string(text.length + 1) +
        " characters, a window and one more, got: " + std::to_string(part.end - part.begin) +
        (take == 0 ? ", of which 0 windows are taken" : ""));
  }
  return std::unique_ptr<Source>(
      std::make_unique<TextSource>(std::move(text), std::move(file), numbers, part.begin, size));
}

namespace by_name {

SourceOptions Text(const Options& options) {
  return TextFile{.file = options.Text("file"),
                  .length = options.Int("length", 0),
                  .stride = options.Int("stride", 0),
                  .alphabet = options.Text("alphabet"),
                  .validation_split = options.Number("validation_split", 0),
                  .validation = options.Text("subset") == "validation"};
}

}  // namespace by_name
}  // namespace meshtrain::data
