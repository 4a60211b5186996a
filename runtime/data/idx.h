// IDX files (the format of MNIST's own): two zero bytes, a type byte, the number of dimensions, the
// dimensions as big-endian u32, then the elements row by row, big-endian. Plain or gzipped, told
// apart by their first bytes. Format: the page of the MNIST database, "THE IDX FILE FORMAT"; gzip:
// RFC 1952.
//
// Reading is a stream: only what is asked for is read and inflated, never more than the header
// declares, so a gzip bomb costs nothing. Errors name the file and the byte: kDataLoss for a file
// that is damaged or lies about itself, kInvalidArgument for one that is not IDX or of an element
// type that nobody reads here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/status.h"
#include "runtime/mesh/shape.h"

namespace meshtrain::data {

// Not thread-safe.
class IdxReader {
 public:
  // Reads and checks the header only. Element types: u8, i32, f32, f64.
  static Result<std::unique_ptr<IdxReader>> Open(const std::string& path);
  ~IdxReader();
  IdxReader(const IdxReader&) = delete;
  IdxReader& operator=(const IdxReader&) = delete;

  const std::string& path() const;
  // As declared: [items, ...]. A scalar file cannot be opened, so there is at least one dimension.
  const mesh::TensorType& type() const;
  int64_t bytes_per_item() const;
  // Bytes of elements read so far.
  int64_t position() const;

  // Fills `out` with the next out.size() bytes of elements, in this machine's byte order;
  // out.size() must be whole elements and not pass the declared end.
  Status Read(std::span<std::byte> out);
  // Call when all was read: checks that nothing follows, and gzip's own checksum and length.
  Status Finish();

 private:
  struct Impl;
  explicit IdxReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::data
