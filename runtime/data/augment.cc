#include "runtime/data/augment.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "runtime/base/check.h"
#include "runtime/mesh/philox.h"

namespace meshtrain::data {
namespace {

using mesh::TensorType;

std::string Size(int64_t height, int64_t width) {
  return "[" + std::to_string(height) + ", " + std::to_string(width) + "]";
}

// The window of a crop; null of a flip.
const Window* WindowOf(const MapOp& op) {
  if (const auto* crop = std::get_if<RandomCrop>(&op)) return &crop->window;
  const auto* middle = std::get_if<CenterCrop>(&op);
  return middle == nullptr ? nullptr : &middle->window;
}

// A number below `bound`, each as likely as the others but for bound / 2^32.
int64_t Below(uint32_t word, int64_t bound) {
  return static_cast<int64_t>(uint64_t{word} * static_cast<uint64_t>(bound) >> 32);
}

}  // namespace

bool MovesValues(const MapOp& op) {
  return std::holds_alternative<RandomFlip>(op) || WindowOf(op) != nullptr;
}

std::vector<MapOp> ForEvaluation(std::vector<MapOp> ops) {
  std::vector<MapOp> out;
  for (MapOp& op : ops) {
    if (std::holds_alternative<RandomFlip>(op)) continue;
    if (const auto* crop = std::get_if<RandomCrop>(&op)) op = CenterCrop{crop->window};
    out.push_back(std::move(op));
  }
  return out;
}

Result<Augmentation> Augmentation::Create(const MapOp& op, const TensorType& image, uint64_t seed,
                                          uint32_t stream) {
  MT_CHECK(MovesValues(op));
  if (image.rank() != 2 && image.rank() != 3) {
    return InvalidArgument("expected images [height, width] or [height, width, channels], got: " +
                           image.ToString());
  }
  Augmentation made;
  made.op_ = op;
  made.input_ = made.output_ = image;
  made.pixel_bytes_ = mesh::DTypeBytes(image.dtype) * (image.rank() == 3 ? image.dims[2] : 1);
  const auto mixed = mesh::Philox({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
                                  {stream, 0, 0, 0});
  made.key_ = {mixed[0], mixed[1]};
  const Window* window = WindowOf(op);
  if (window == nullptr) return made;
  if (window->height < 1 || window->width < 1) {
    return InvalidArgument("expected a size of at least [1, 1], got: " +
                           Size(window->height, window->width));
  }
  constexpr int64_t kMaxPadding = 1 << 20;
  if (window->padding < 0 || window->padding > kMaxPadding) {
    return InvalidArgument("expected a padding of 0 to " + std::to_string(kMaxPadding) +
                           ", got: " + std::to_string(window->padding));
  }
  const int64_t height = image.dims[0] + 2 * window->padding;
  const int64_t width = image.dims[1] + 2 * window->padding;
  if (window->height > height || window->width > width) {
    return InvalidArgument(
        "expected a size of at most " + Size(height, width) + ", of images " + image.ToString() +
        (window->padding > 0 ? " with " + std::to_string(window->padding) + " of padding" : "") +
        ", got: " + Size(window->height, window->width));
  }
  made.output_.dims[0] = window->height;
  made.output_.dims[1] = window->width;
  return made;
}

Augmentation::Move Augmentation::Draw(int64_t example, int64_t pass) const {
  const auto e = static_cast<uint64_t>(example), p = static_cast<uint64_t>(pass);
  const auto words = mesh::Philox(key_, {static_cast<uint32_t>(e), static_cast<uint32_t>(e >> 32),
                                         static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32)});
  Move move;
  if (const auto* flip = std::get_if<RandomFlip>(&op_)) {
    move.mirror_columns = flip->horizontal && words[0] >> 31 != 0;
    move.mirror_rows = flip->vertical && words[1] >> 31 != 0;
    return move;
  }
  const Window& window = *WindowOf(op_);
  const int64_t down = input_.dims[0] + 2 * window.padding - window.height;
  const int64_t right = input_.dims[1] + 2 * window.padding - window.width;
  const bool random = std::holds_alternative<RandomCrop>(op_);
  move.top = (random ? Below(words[0], down + 1) : down / 2) - window.padding;
  move.left = (random ? Below(words[1], right + 1) : right / 2) - window.padding;
  return move;
}

void Augmentation::Run(int64_t example, int64_t pass, std::span<const std::byte> in,
                       std::span<std::byte> out) const {
  const Move move = Draw(example, pass);
  const int64_t rows = input_.dims[0], columns = input_.dims[1];
  const int64_t out_rows = output_.dims[0], out_columns = output_.dims[1];
  const auto pixel = static_cast<size_t>(pixel_bytes_);
  MT_CHECK(in.size() == static_cast<size_t>(rows * columns) * pixel);
  MT_CHECK(out.size() == static_cast<size_t>(out_rows * out_columns) * pixel);
  // The columns of an output row that lie in the image.
  const int64_t begin = std::clamp<int64_t>(-move.left, 0, out_columns);
  const int64_t end = std::clamp<int64_t>(columns - move.left, begin, out_columns);
  for (int64_t r = 0; r < out_rows; ++r) {
    std::byte* to = out.data() + static_cast<size_t>(r * out_columns) * pixel;
    const int64_t from_row = move.top + (move.mirror_rows ? out_rows - 1 - r : r);
    if (from_row < 0 || from_row >= rows) {
      std::memset(to, 0, static_cast<size_t>(out_columns) * pixel);
      continue;
    }
    const std::byte* row = in.data() + static_cast<size_t>(from_row * columns) * pixel;
    if (move.mirror_columns) {
      for (int64_t c = 0; c < out_columns; ++c) {
        std::memcpy(to + static_cast<size_t>(c) * pixel,
                    row + static_cast<size_t>(out_columns - 1 - c) * pixel, pixel);
      }
      continue;
    }
    std::memset(to, 0, static_cast<size_t>(begin) * pixel);
    if (end > begin) {
      std::memcpy(to + static_cast<size_t>(begin) * pixel,
                  row + static_cast<size_t>(begin + move.left) * pixel,
                  static_cast<size_t>(end - begin) * pixel);
    }
    std::memset(to + static_cast<size_t>(end) * pixel, 0,
                static_cast<size_t>(out_columns - end) * pixel);
  }
}

}  // namespace meshtrain::data
