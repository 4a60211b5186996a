// Makes PNG files by hand, of any kind that the format has, with a checksum where one is due.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/check.h"

namespace meshtrain::data {

// As the header writes them.
enum PngColor { kPngGrey = 0, kPngRgb = 2, kPngPalette = 3, kPngGreyAlpha = 4, kPngRgba = 6 };

struct PngOptions {
  int bits = 8;
  std::string palette = "";       // of PLTE: red, green, blue of each entry
  std::string transparency = "";  // of tRNS
  bool interlaced = false;
};

inline std::string Big32(uint32_t n) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(n >> shift & 255));
  return out;
}

inline std::string PngChunk(const std::string& name, const std::string& data) {
  const std::string body = name + data;
  const auto crc =
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return Big32(static_cast<uint32_t>(data.size())) + body + Big32(static_cast<uint32_t>(crc));
}

// `samples`: of the pixels, row by row, each of `bits`; of 16 the higher byte first.
inline std::string Png(uint32_t height, uint32_t width, PngColor color,
                       const std::vector<int>& samples, const PngOptions& o = {}) {
  const uint32_t channels = color == kPngRgb         ? 3
                            : color == kPngRgba      ? 4
                            : color == kPngGreyAlpha ? 2
                                                     : 1;
  MT_CHECK(samples.size() == size_t{height} * width * channels);
  std::string raw;
  const auto add_rows = [&](uint32_t top, uint32_t left, uint32_t down, uint32_t right) {
    for (uint32_t r = top; r < height && left < width; r += down) {
      raw.push_back('\0');  // no filter
      uint32_t bits = 0, pending = 0;
      for (uint32_t c = left; c < width; c += right) {
        for (uint32_t s = 0; s < channels; ++s) {
          const auto sample =
              static_cast<uint32_t>(samples[(size_t{r} * width + c) * channels + s]);
          if (o.bits == 16) raw.push_back(static_cast<char>(sample >> 8));
          if (o.bits >= 8) {
            raw.push_back(static_cast<char>(sample & 255));
            continue;
          }
          bits = bits << o.bits | sample;
          pending += static_cast<uint32_t>(o.bits);
          if (pending == 8) {
            raw.push_back(static_cast<char>(bits & 255));
            pending = bits = 0;
          }
        }
      }
      if (pending > 0) raw.push_back(static_cast<char>(bits << (8 - pending) & 255));
    }
  };
  if (o.interlaced) {  // Adam7
    const uint32_t passes[7][4] = {{0, 0, 8, 8}, {0, 4, 8, 8}, {4, 0, 8, 4}, {0, 2, 4, 4},
                                   {2, 0, 4, 2}, {0, 1, 2, 2}, {1, 0, 2, 1}};
    for (const auto& p : passes) add_rows(p[0], p[1], p[2], p[3]);
  } else {
    add_rows(0, 0, 1, 1);
  }
  uLongf size = compressBound(static_cast<uLong>(raw.size()));
  std::string packed(size, '\0');
  MT_CHECK(compress(reinterpret_cast<Bytef*>(packed.data()), &size,
                    reinterpret_cast<const Bytef*>(raw.data()),
                    static_cast<uLong>(raw.size())) == Z_OK);
  packed.resize(size);
  const std::string head = Big32(width) + Big32(height) +
                           std::string{static_cast<char>(o.bits), static_cast<char>(color), '\0',
                                       '\0', static_cast<char>(o.interlaced)};
  std::string out = "\x89PNG\r\n\x1a\n" + PngChunk("IHDR", head);
  if (!o.palette.empty()) out += PngChunk("PLTE", o.palette);
  if (!o.transparency.empty()) out += PngChunk("tRNS", o.transparency);
  return out + PngChunk("IDAT", packed) + PngChunk("IEND", "");
}

}  // namespace meshtrain::data
