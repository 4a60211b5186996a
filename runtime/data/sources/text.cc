// Windows of a plain text.
#include "runtime/base/text.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/data/sources/sources.h"

namespace meshtrain::data {
namespace {

using mesh::Tensor;
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
        // Uninitialised pages: only what is read becomes resident.
        ids_(TensorType{mesh::DType::kU8, {(size - 1) * text_.stride + text_.length + 1}}),
        element_(2, TensorType{mesh::DType::kU8, {text_.length}}) {}

  int64_t size() const override { return size_; }
  const std::vector<TensorType>& element() const override { return element_; }

  Status Ensure(int64_t end) override {
    MT_CHECK(end <= size_);
    if (end <= ready_ || !error_.ok()) return error_;
    error_ = ReadTo((end - 1) * text_.stride + text_.length + 1);
    if (error_.ok()) ready_ = end;
    return error_;
  }

  std::span<const std::byte> Row(int component, int64_t index) const override {
    MT_CHECK(index < ready_);
    return ids_.bytes().subspan(static_cast<size_t>(index * text_.stride + component),
                                static_cast<size_t>(text_.length));
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
  // The first `count` characters of the part, as numbers.
  Status ReadTo(int64_t count) {
    if (count <= read_) return OkStatus();
    const int64_t at = begin_ + read_;
    const std::span<uint8_t> wanted = ids_.mutable_values<uint8_t>().subspan(
        static_cast<size_t>(read_), static_cast<size_t>(count - read_));
    MT_ASSIGN_OR_RETURN(const size_t n,
                        ReadAt(file_, at, std::as_writable_bytes(wanted), text_.file));
    for (size_t i = 0; i < n; ++i) {
      uint8_t& byte = wanted[i];
      const int16_t number = numbers_[byte];
      if (number < 0) {
        return InvalidArgument(text_.file + ": byte " +
                               std::to_string(at + static_cast<int64_t>(i)) +
                               ": expected one of the " + std::to_string(text_.alphabet.size()) +
                               " characters of `alphabet`, got: " + CharacterText(byte));
      }
      byte = static_cast<uint8_t>(number);
    }
    read_ += static_cast<int64_t>(n);
    if (n < wanted.size()) {
      return DataLoss(text_.file + ": byte " + std::to_string(begin_ + read_) +
                      ": expected the text as it was opened, got: its end");
    }
    return OkStatus();
  }

  const TextFile text_;
  const FileDescriptor file_;
  const Numbers numbers_;
  const int64_t begin_, size_;
  Tensor ids_;
  const std::vector<TensorType> element_;
  int64_t read_ = 0;  // characters
  int64_t ready_ = 0;
  Status error_;
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
