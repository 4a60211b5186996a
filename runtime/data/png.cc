#include "runtime/data/png.h"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/text.h"

namespace meshtrain::data {
namespace {

constexpr size_t kSignature = 8;
constexpr int64_t kMaxPixels = int64_t{1} << 28;

// Of BT.601, in 65536ths; their sum is 65536.
uint8_t Luma(const uint8_t* rgb) {
  return static_cast<uint8_t>((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 32768u) >> 16);
}

}  // namespace

// libpng leaves by longjmp, past the frames of the functions below that call it: those hold nothing
// that a destructor would have to free.
struct PngReader::Impl {
  std::string file;
  std::string_view bytes;
  size_t at = 0;  // what libpng has taken
  char error[128] = "";
  png_structp png = nullptr;
  png_infop info = nullptr;
  int64_t height = 0, width = 0;

  ~Impl() { png_destroy_read_struct(&png, &info, nullptr); }

  static void OnError(png_structp png, png_const_charp message) {
    auto* self = static_cast<Impl*>(png_get_error_ptr(png));
    std::snprintf(self->error, sizeof self->error, "%s", message);
    png_longjmp(png, 1);
  }
  static void OnWarning(png_structp, png_const_charp) {}
  static void OnRead(png_structp png, png_bytep out, size_t count) {
    auto* self = static_cast<Impl*>(png_get_io_ptr(png));
    if (count > self->bytes.size() - self->at) png_error(png, "end of file");
    std::memcpy(out, self->bytes.data() + self->at, count);
    self->at += count;
  }

  bool ReadInfo() {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_set_read_fn(png, this, OnRead);
    png_read_info(png, info);
    return true;
  }

  // Whether the image has colours; palettes are of colours.
  bool colored() const { return (png_get_color_type(png, info) & PNG_COLOR_MASK_COLOR) != 0; }

  // Asks for rows of `channels`, or of three where grey is to be made of colours. Gives the bytes
  // of a row.
  bool Prepare(int64_t channels, size_t* row_bytes) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    const int type = png_get_color_type(png, info);
    const bool transparent = png_get_valid(png, info, PNG_INFO_tRNS) != 0;
    if (png_get_bit_depth(png, info) == 16) png_set_scale_16(png);
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
    if (!colored()) png_set_expand_gray_1_2_4_to_8(png);
    if (!colored() && channels > 1) png_set_gray_to_rgb(png);
    if (channels < 4) {
      png_set_strip_alpha(png);
    } else if (transparent) {
      png_set_tRNS_to_alpha(png);
    } else if ((type & PNG_COLOR_MASK_ALPHA) == 0) {
      png_set_add_alpha(png, 255, PNG_FILLER_AFTER);
    }
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    *row_bytes = png_get_rowbytes(png, info);
    return true;
  }

  // And what stands behind the image.
  bool ReadRows(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_read_image(png, rows);
    png_read_end(png, nullptr);
    return true;
  }

  Status Damaged() const {
    return DataLoss(file + ": byte " + std::to_string(at) +
                    ": expected a sound PNG image, got: " + Printable(error));
  }
};

PngReader::PngReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PngReader::~PngReader() = default;
int64_t PngReader::height() const { return impl_->height; }
int64_t PngReader::width() const { return impl_->width; }

Result<std::unique_ptr<PngReader>> PngReader::Create(std::string_view bytes, std::string file) {
  if (bytes.size() < kSignature ||
      png_sig_cmp(reinterpret_cast<png_const_bytep>(bytes.data()), 0, kSignature) != 0) {
    return DataLoss(file + ": byte 0: expected a PNG image, got: " +
                    (bytes.empty() ? "an empty file" : "other bytes"));
  }
  auto impl = std::make_unique<Impl>();
  impl->file = std::move(file);
  impl->bytes = bytes;
  impl->png =
      png_create_read_struct(PNG_LIBPNG_VER_STRING, impl.get(), Impl::OnError, Impl::OnWarning);
  if (impl->png != nullptr) impl->info = png_create_info_struct(impl->png);
  if (impl->info == nullptr) return Internal(impl->file + ": libpng does not start");
  if (!impl->ReadInfo()) return impl->Damaged();
  impl->height = png_get_image_height(impl->png, impl->info);
  impl->width = png_get_image_width(impl->png, impl->info);
  if (impl->height > kMaxPixels / impl->width) {
    return InvalidArgument(impl->file + ": byte 16: expected an image of at most " +
                           std::to_string(kMaxPixels) +
                           " pixels, got: " + std::to_string(impl->height) + " rows of " +
                           std::to_string(impl->width));
  }
  return std::unique_ptr<PngReader>(new PngReader(std::move(impl)));
}

Status PngReader::Decode(int64_t channels, std::span<uint8_t> out) {
  MT_CHECK(channels == 1 || channels == 3 || channels == 4);
  const auto height = static_cast<size_t>(impl_->height), width = static_cast<size_t>(impl_->width);
  MT_CHECK(out.size() == height * width * static_cast<size_t>(channels));
  const bool to_grey = channels == 1 && impl_->colored();
  size_t row_bytes = 0;
  if (!impl_->Prepare(channels, &row_bytes)) return impl_->Damaged();
  if (row_bytes != width * (to_grey ? 3 : static_cast<size_t>(channels))) {
    return Internal(impl_->file + ": libpng gives rows of " + std::to_string(row_bytes) + " bytes");
  }
  std::vector<uint8_t> colors(to_grey ? height * row_bytes : 0);
  uint8_t* pixels = to_grey ? colors.data() : out.data();
  std::vector<png_bytep> rows(height);
  for (size_t r = 0; r < height; ++r) rows[r] = pixels + r * row_bytes;
  if (!impl_->ReadRows(rows.data())) return impl_->Damaged();
  if (to_grey) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = Luma(&colors[3 * i]);
  }
  return OkStatus();
}

}  // namespace meshtrain::data
