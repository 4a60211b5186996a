// Makes IDX files, sound and broken, in a folder that goes away.
#pragma once

#include <zlib.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::data {

class TempFolder : public testing_folder::TempFolder {
 public:
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(At(name), std::ios::binary) << bytes;
    return At(name);
  }
};

inline std::string IdxHeader(const std::vector<uint32_t>& dims, char type = 0x08) {
  std::string bytes{'\0', '\0', type, static_cast<char>(dims.size())};
  for (const uint32_t d : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<char>(d >> shift & 255));
    }
  }
  return bytes;
}

inline std::string Gzip(const std::string& bytes) {
  z_stream z{};
  MT_CHECK(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&z, bytes.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  MT_CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

// `count` images of 2x3, image i holding i*7, i*7+1, ... modulo 256; and label i = i mod 10.
inline std::string Images(uint32_t count) {
  std::string bytes = IdxHeader({count, 2, 3});
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t p = 0; p < 6; ++p) bytes.push_back(static_cast<char>((i * 7 + p) & 255));
  }
  return bytes;
}
// Labels of f32, as they are.
inline std::string FloatLabels(const std::vector<float>& labels) {
  std::string bytes = IdxHeader({static_cast<uint32_t>(labels.size())}, 0x0D);
  for (const float label : labels) {
    const auto bits = std::bit_cast<uint32_t>(label);
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<char>(bits >> shift & 255));
    }
  }
  return bytes;
}
inline std::string Labels(uint32_t count) {
  std::string bytes = IdxHeader({count});
  for (uint32_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i % 10));
  return bytes;
}

}  // namespace meshtrain::data
