#include "runtime/data/idx.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/file.h"

namespace meshtrain::data {
namespace {

constexpr size_t kChunk = 1 << 17;
constexpr int kMaxRank = 8;
// Deflate cannot shrink further than this (zlib's technical notes), so a header that declares more
// lies.
constexpr int64_t kMaxDeflateRatio = 1032;

std::string Num(int64_t n) { return std::to_string(n); }

std::optional<mesh::DType> TypeOfCode(uint8_t code) {
  switch (code) {
    case 0x08:
      return mesh::DType::kU8;
    case 0x0C:
      return mesh::DType::kI32;
    case 0x0D:
      return mesh::DType::kF32;
    case 0x0E:
      return mesh::DType::kF64;
    default:
      return std::nullopt;
  }
}

void SwapBytes(std::span<std::byte> bytes, int64_t width) {
  for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(width)) {
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                 bytes.begin() + static_cast<std::ptrdiff_t>(i) + width);
  }
}

}  // namespace

struct IdxReader::Impl {
  std::string path;
  FileDescriptor file;
  int64_t file_bytes = 0;
  bool gzip = false;
  bool stream_ended = false;  // the last gzip member's end was reached
  z_stream zlib{};
  bool zlib_ready = false;
  std::vector<std::byte> chunk = std::vector<std::byte>(kChunk);
  size_t chunk_begin = 0;
  size_t chunk_end = 0;
  int64_t file_position = 0;     // of chunk_end
  int64_t content_position = 0;  // bytes handed out, header included
  int64_t header_bytes = 0;
  mesh::TensorType type;

  ~Impl() {
    if (zlib_ready) inflateEnd(&zlib);
  }

  // "PATH: byte N: ": of the content, which for a plain file is the file.
  std::string Here() const { return path + ": byte " + Num(content_position) + ": "; }
  std::string InFile() const {
    return path + ": byte " + Num(file_position - static_cast<int64_t>(chunk_end - chunk_begin)) +
           " of the compressed file: ";
  }

  // More file bytes into an empty chunk; zero bytes at the file's end.
  Result<size_t> Refill() {
    for (;;) {
      const ssize_t n = ::read(file.get(), chunk.data(), chunk.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, "cannot read at byte " + Num(file_position), path);
      chunk_begin = 0;
      chunk_end = static_cast<size_t>(n);
      file_position += n;
      return chunk_end;
    }
  }

  // As many content bytes as there are, at most out.size().
  Result<size_t> Pull(std::span<std::byte> out) { return gzip ? PullGzip(out) : PullPlain(out); }

  Result<size_t> PullPlain(std::span<std::byte> out) {
    size_t done = 0;
    while (done < out.size()) {
      if (chunk_begin == chunk_end) {
        MT_ASSIGN_OR_RETURN(const size_t n, Refill());
        if (n == 0) break;
      }
      const size_t n = std::min(out.size() - done, chunk_end - chunk_begin);
      std::memcpy(out.data() + done, chunk.data() + chunk_begin, n);
      chunk_begin += n;
      done += n;
    }
    content_position += static_cast<int64_t>(done);
    return done;
  }

  Result<size_t> PullGzip(std::span<std::byte> out) {
    size_t done = 0;
    while (done < out.size()) {
      if (chunk_begin == chunk_end) {
        MT_ASSIGN_OR_RETURN(const size_t n, Refill());
        if (n == 0) {
          if (stream_ended) break;
          return DataLoss(InFile() + "expected the gzip stream to go on (content so far: " +
                          Num(content_position + static_cast<int64_t>(done)) +
                          " bytes), got: end of file");
        }
      }
      if (stream_ended) {  // another member follows, as `cat a.gz b.gz` makes
        if (inflateReset(&zlib) != Z_OK) return Internal(path + ": inflateReset failed");
        stream_ended = false;
      }
      zlib.next_in = reinterpret_cast<Bytef*>(chunk.data() + chunk_begin);
      zlib.avail_in = static_cast<uInt>(chunk_end - chunk_begin);
      const size_t room = std::min(out.size() - done, size_t{1} << 30);
      zlib.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      zlib.avail_out = static_cast<uInt>(room);
      const int code = inflate(&zlib, Z_NO_FLUSH);
      chunk_begin = chunk_end - zlib.avail_in;
      done += room - zlib.avail_out;
      if (code == Z_STREAM_END) {
        stream_ended = true;
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        return DataLoss(InFile() + "expected a sound gzip stream, got: " +
                        (zlib.msg != nullptr ? zlib.msg : "zlib error " + Num(code)));
      }
    }
    content_position += static_cast<int64_t>(done);
    return done;
  }

  Status PullAll(std::span<std::byte> out, std::string_view what) {
    MT_ASSIGN_OR_RETURN(const size_t n, Pull(out));
    if (n == out.size()) return OkStatus();
    return DataLoss(Here() + "expected " + std::string(what) + ", got: end of file");
  }

  Status Start() {
    MT_ASSIGN_OR_RETURN(file, OpenFile(path, O_RDONLY));
    struct stat info {};
    if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, "cannot stat", path);
    file_bytes = info.st_size;
    MT_ASSIGN_OR_RETURN(const size_t n, Refill());
    gzip = n >= 2 && chunk[0] == std::byte{0x1f} && chunk[1] == std::byte{0x8b};
    if (gzip) {
      if (inflateInit2(&zlib, 15 + 16) != Z_OK) return Internal(path + ": inflateInit2 failed");
      zlib_ready = true;
    }
    return ReadHeader();
  }

  Status ReadHeader() {
    std::byte magic[4];
    MT_RETURN_IF_ERROR(PullAll(magic, "the 4 bytes of IDX's magic number"));
    const auto u = [&](int i) { return std::to_integer<unsigned>(magic[i]); };
    const std::optional<mesh::DType> dtype = TypeOfCode(static_cast<uint8_t>(u(2)));
    const unsigned rank = u(3);
    if (u(0) != 0 || u(1) != 0 || rank < 1 || rank > kMaxRank || u(2) < 0x08 || u(2) > 0x0E) {
      char text[16];
      std::snprintf(text, sizeof text, "%02x%02x%02x%02x", u(0), u(1), u(2), u(3));
      return InvalidArgument(
          path + ": byte 0: expected IDX's magic number (0000, type, rank 1 to 8), got: " + text);
    }
    if (!dtype) {
      return InvalidArgument(
          path + ": byte 2: expected element type 08 (u8), 0c (i32), 0d (f32) or 0e (f64), got: 0" +
          "0123456789abcdef"[u(2)]);
    }
    type.dtype = *dtype;
    header_bytes = 4 + 4 * static_cast<int64_t>(rank);
    std::vector<std::byte> sizes(4 * rank);
    MT_RETURN_IF_ERROR(PullAll(sizes, "the header's " + Num(rank) + " dimensions"));
    int64_t bytes = mesh::DTypeBytes(*dtype);
    // Of as many elements as there would be with at least one in each dimension: also an item of
    // none must have a size.
    int64_t most = bytes;
    for (unsigned d = 0; d < rank; ++d) {
      int64_t size = 0;
      for (int i = 0; i < 4; ++i) size = size << 8 | std::to_integer<int64_t>(sizes[4 * d + i]);
      type.dims.push_back(size);
      if (__builtin_mul_overflow(most, std::max<int64_t>(size, 1), &most) ||
          most > (int64_t{1} << 46)) {
        return DataLoss(path + ": byte " + Num(4 + 4 * d) +
                        ": expected dimensions that fit in memory, got: " + Num(size) +
                        " in dimension " + Num(d));
      }
      bytes *= size;
    }
    return CheckDeclaredBytes(bytes);
  }

  // What the header promises against what the file can hold, before anybody allocates for it.
  Status CheckDeclaredBytes(int64_t bytes) const {
    const std::string declared = type.ToString() + " = " + Num(bytes) + " bytes";
    if (gzip && bytes > file_bytes * kMaxDeflateRatio) {
      return DataLoss(path + ": byte 4: expected dimensions that " + Num(file_bytes) +
                      " compressed bytes can hold, got: " + declared);
    }
    if (!gzip && file_bytes != header_bytes + bytes) {
      return DataLoss(path + ": byte " + Num(std::min(file_bytes, header_bytes + bytes)) +
                      ": expected the file to hold " + declared +
                      " after its header, got: " + Num(file_bytes - header_bytes) + " bytes");
    }
    return OkStatus();
  }
};

IdxReader::IdxReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
IdxReader::~IdxReader() = default;

Result<std::unique_ptr<IdxReader>> IdxReader::Open(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  MT_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<IdxReader>(new IdxReader(std::move(impl)));
}

const std::string& IdxReader::path() const { return impl_->path; }
const mesh::TensorType& IdxReader::type() const { return impl_->type; }
int64_t IdxReader::position() const { return impl_->content_position - impl_->header_bytes; }

int64_t IdxReader::bytes_per_item() const {
  const mesh::Dims& dims = impl_->type.dims;
  return mesh::NumElements(mesh::Dims(dims.begin() + 1, dims.end())) *
         mesh::DTypeBytes(impl_->type.dtype);
}

Status IdxReader::Read(std::span<std::byte> out) {
  const int64_t width = mesh::DTypeBytes(impl_->type.dtype);
  MT_CHECK(static_cast<int64_t>(out.size()) % width == 0);
  MT_CHECK(position() + static_cast<int64_t>(out.size()) <= impl_->type.num_bytes());
  MT_RETURN_IF_ERROR(impl_->PullAll(out, "content up to byte " +
                                             Num(impl_->header_bytes + impl_->type.num_bytes()) +
                                             " (" + impl_->type.ToString() + ")"));
  if (width > 1 && std::endian::native == std::endian::little) SwapBytes(out, width);
  return OkStatus();
}

Status IdxReader::Finish() {
  MT_CHECK(position() == impl_->type.num_bytes());
  std::byte extra[1];
  MT_ASSIGN_OR_RETURN(const size_t n, impl_->Pull(extra));
  if (n == 0) return OkStatus();
  return DataLoss(impl_->path + ": byte " + Num(impl_->content_position - 1) +
                  ": expected the end after " + impl_->type.ToString() + ", got: more bytes");
}

}  // namespace meshtrain::data
