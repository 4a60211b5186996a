// Folders that go away, tensors with known contents, and damage to files.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "runtime/checkpoint/collect.h"
#include "runtime/mesh/element_type.h"
#include "runtime/mesh/layout.h"
#include "runtime/mesh/tensor.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::checkpoint {

using testing_folder::TempFolder;

inline std::string Slurp(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}
inline void Spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}
inline void FlipByte(const std::string& path, size_t at) {
  std::string bytes = Slurp(path);
  bytes.at(at) = static_cast<char>(bytes[at] ^ 1);
  Spill(path, bytes);
}

// Element i is first + i.
inline mesh::Tensor Counting(mesh::TensorType type, double first = 0) {
  mesh::Tensor t(type);
  for (int64_t i = 0; i < type.num_elements(); ++i) {
    const double v = first + static_cast<double>(i);
    switch (type.dtype) {
      case mesh::DType::kBool:
        t.mutable_values<bool>()[i] = i % 3 == 0;
        break;
      case mesh::DType::kU8:
        t.mutable_values<uint8_t>()[i] = static_cast<uint8_t>(i);
        break;
      case mesh::DType::kI32:
        t.mutable_values<int32_t>()[i] = static_cast<int32_t>(v);
        break;
      case mesh::DType::kI64:
        t.mutable_values<int64_t>()[i] = static_cast<int64_t>(v);
        break;
      case mesh::DType::kF32:
        t.mutable_values<float>()[i] = static_cast<float>(v);
        break;
      case mesh::DType::kBF16:
        t.mutable_values<mesh::BFloat16>()[i] = mesh::BFloat16(v);
        break;
      case mesh::DType::kF16:
        t.mutable_values<mesh::Float16>()[i] = mesh::Float16(v);
        break;
      case mesh::DType::kF64:
        t.mutable_values<double>()[i] = v;
        break;
    }
  }
  return t;
}

inline mesh::TensorType Type(const std::string& text) { return *mesh::TensorType::Parse(text); }

inline std::string Bytes(const mesh::Tensor& t) {
  return t.type().ToString() +
         std::string(reinterpret_cast<const char*>(t.bytes().data()), t.bytes().size());
}

// What device `rank` stores of `global`: its slice at the start of ceil-sized storage, the rest 99s
// of bytes.
inline mesh::Tensor Storage(const mesh::Tensor& global, const mesh::Layout& layout, int64_t rank) {
  mesh::Tensor out(mesh::TensorType{global.type().dtype, *layout.LocalShape(global.dims())});
  std::memset(out.mutable_bytes().data(), 99, out.mutable_bytes().size());
  const auto slice = layout.SliceOf(rank, global.dims());
  if (mesh::NumElements(slice.sizes) > 0) {
    out.Paste(global.Slice(slice.offsets, slice.sizes), mesh::Dims(out.dims().size(), 0));
  }
  return out;
}

inline Snapshot Whole(int64_t step, std::vector<std::pair<std::string, mesh::Tensor>> tensors) {
  Snapshot snapshot{.step = step,
                    .mesh = "batch=8",
                    .program_hash = "00c0ffee",
                    .data_cursor = "epoch=1 batch=2 order=3"};
  for (auto& [name, tensor] : tensors) {
    snapshot.variables.push_back(
        {name, tensor.type(), "", {{mesh::Dims(tensor.dims().size(), 0), tensor}}});
  }
  return snapshot;
}

}  // namespace meshtrain::checkpoint
