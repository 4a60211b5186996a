// safetensors files, read and written: an u64 header length (little-endian), a JSON header, the
// tensors' bytes. Format: huggingface/safetensors, README, "Format". Kept true by both sides:
// tensors lie without gaps or overlaps and fill the file, names are unique, the header is at most
// 100,000,000 bytes.
//
// Errors: kDataLoss for a file that breaks these rules, naming the byte; kUnimplemented for an
// element type that Meshtrain has not (such a file opens, its other tensors can be read);
// base/file.h's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/checkpoint/raw_file.h"
#include "runtime/mesh/named_type.h"
#include "runtime/mesh/shape.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::checkpoint {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as the file spells it: "F32"
  mesh::Dims dims;
  int64_t begin = 0;  // bytes in the file
  int64_t end = 0;

  std::optional<mesh::TensorType> type()
      const;  // nothing for an element type that Meshtrain has not
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> entries;  // by rising `begin`
  int64_t data_begin = 0;

  const SafetensorsEntry* Find(std::string_view name) const;
};

// `bytes`: the file's beginning, at least the whole header. Pure.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view bytes, int64_t file_bytes,
                                                 const std::string& path);

// Lays `tensors` out (elements of more bytes first, then by name, which keeps each aligned) and
// gives the header with its bytes, padded with spaces to 64. Errors: kInvalidArgument for a name
// twice, or "__metadata__". Pure.
struct SafetensorsPlan {
  SafetensorsHeader header;
  std::string header_bytes;
};
Result<SafetensorsPlan> PlanSafetensors(std::vector<mesh::NamedType> tensors,
                                        const std::map<std::string, std::string>& metadata);

// Thread-safe.
class SafetensorsReader {
 public:
  static Result<std::unique_ptr<SafetensorsReader>> Open(const std::string& path);
  const std::string& path() const { return file_->path(); }
  const SafetensorsHeader& header() const { return header_; }
  // Errors: kNotFound for an unknown name, with the nearest.
  Result<mesh::Tensor> Read(std::string_view name) const;
  // Reads only the bytes of the box [offsets, offsets + sizes). Errors: also kInvalidArgument when
  // it is not inside.
  Result<mesh::Tensor> ReadSlice(std::string_view name, const mesh::Dims& offsets,
                                 const mesh::Dims& sizes) const;

 private:
  SafetensorsReader(std::unique_ptr<RawReader> file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}
  Result<const SafetensorsEntry*> Lookup(std::string_view name) const;
  std::unique_ptr<RawReader> file_;
  SafetensorsHeader header_;
};

// Writes all at once, atomically.
Status WriteSafetensors(const std::string& path, const std::map<std::string, mesh::Tensor>& tensors,
                        const std::map<std::string, std::string>& metadata = {});

}  // namespace meshtrain::checkpoint
