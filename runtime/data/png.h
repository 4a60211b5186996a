// PNG images. Format: ISO/IEC 15948 (PNG 1.2). Decoded by libpng, which no other file sees.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace meshtrain::data {

// One image. Not thread-safe.
class PngReader {
 public:
  // Reads what stands before the image's data. `bytes`, a whole file, outlives the reader; `file`:
  // what errors call it. Errors: kDataLoss for bytes that are no PNG image or are damaged.
  static Result<std::unique_ptr<PngReader>> Create(std::string_view bytes, std::string file);
  ~PngReader();
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  int64_t height() const;
  int64_t width() const;
  // The image as u8[height, width, channels], to the file's end; once. Channels: 1 (grey), 3 (red,
  // green, blue) or 4 (and alpha). Palettes are looked up; values of 1, 2 and 4 bits become of 8,
  // those of 16 are rounded to 8. Grey becomes three equal colours; of colours grey is the luma of
  // ITU-R BT.601, (0.299 R + 0.587 G + 0.114 B). Alpha that is not asked for is left out; that is
  // asked for and not there is opaque. Errors: kDataLoss for a damaged image.
  Status Decode(int64_t channels, std::span<uint8_t> out);

 private:
  struct Impl;
  explicit PngReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::data
