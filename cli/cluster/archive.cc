#include "cli/cluster/archive.h"

#include <zlib.h>

#include <cstdio>
#include <cstring>

namespace meshtrain::cli {
namespace {

constexpr size_t kBlock = 512;

void PutOctal(char* field, size_t size, int64_t value) {
  std::snprintf(field, size, "%0*llo", static_cast<int>(size - 1),
                static_cast<unsigned long long>(value));
}

std::string Header(const std::string& name, size_t bytes, int64_t time) {
  std::string header(kBlock, '\0');
  char* h = header.data();
  // NOLINTNEXTLINE(bugprone-not-null-terminated-result): a field of tar's may be full
  std::memcpy(h, name.data(), name.size());
  PutOctal(h + 100, 8, 0644);
  PutOctal(h + 108, 8, 0);
  PutOctal(h + 116, 8, 0);
  PutOctal(h + 124, 12, static_cast<int64_t>(bytes));
  PutOctal(h + 136, 12, time);
  std::memset(h + 148, ' ', 8);
  h[156] = '0';
  // NOLINTNEXTLINE(bugprone-not-null-terminated-result): a field of tar's may be full
  std::memcpy(h + 257,
              "ustar\0"
              "00",
              8);
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  std::snprintf(h + 148, 8, "%06o", sum);
  return header;
}

}  // namespace

Result<std::string> TarGz(const std::vector<std::pair<std::string, std::string>>& files,
                          int64_t seconds_since_1970) {
  std::string tar;
  for (const auto& [name, text] : files) {
    if (name.size() > 100) {
      return InvalidArgument(name + ": expected a name of at most 100 bytes in an archive");
    }
    tar += Header(name, text.size(), seconds_since_1970);
    tar += text;
    tar.append((kBlock - text.size() % kBlock) % kBlock, '\0');
  }
  tar.append(2 * kBlock, '\0');
  z_stream stream{};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) !=
      Z_OK) {
    return Internal("zlib: it does not begin");
  }
  std::string out(deflateBound(&stream, tar.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(tar.data());
  stream.avail_in = static_cast<uInt>(tar.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int end = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (end != Z_STREAM_END) return Internal("zlib: it does not come to its end");
  return out;
}

}  // namespace meshtrain::cli
