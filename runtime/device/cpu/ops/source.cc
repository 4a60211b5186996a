// Ops that make values out of nothing, and the local ones that read the device's place in the mesh.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/kernels.h"
#include "runtime/device/cpu/philox.h"
#include "runtime/device/cpu/strided.h"
#include "runtime/mesh/element_type.h"
#include "runtime/mesh/tensor.h"
#include "runtime/program/again.h"

namespace meshtrain::device::cpu {
namespace {

using mesh::Dims;
using mesh::DType;
using mesh::TensorType;
using program::Op;
using program::ValueId;

KernelPtr Constant(const TensorType& type, const Op& op) {
  const int64_t width = DTypeBytes(type.dtype), n = type.num_elements();
  const ValueId out = op.results[0];
  if (op.attrs.Has("values")) {
    std::vector<std::byte> bytes(n * width);
    const std::vector<double> values = op.attrs.Doubles("values");
    for (int64_t i = 0; i < n; ++i) {
      std::copy_n(ElementOf(type.dtype, values[i]).bytes, width, &bytes[i * width]);
    }
    return MakeKernel([=, bytes = std::move(bytes)](const Frame& f) {
      if (!bytes.empty()) std::memcpy(f.at[out], bytes.data(), bytes.size());
    });
  }
  const Element value = ElementOf(type.dtype, op.attrs.Double("value"));
  return MakeKernel([=](const Frame& f) {
    f.For(n, kGrain, [&](int64_t begin, int64_t end) {
      ActiveKernels().fill(f.at[out] + begin * width, value.bytes, width, end - begin);
    });
  });
}

// Where each local device's shard stands in the whole tensor. Without `layout` the shard is the
// whole.
struct ShardSlices {
  Dims global;                              // dimensions of the whole
  Dims local;                               // of the shard's storage
  std::vector<mesh::Layout::Slice> slices;  // per local device

  ShardSlices(const Making& making, const TensorType& type, const Op& op) : local(type.dims) {
    if (!op.attrs.Has("layout")) {
      global = local;
      slices.assign(making.ranks.size(), {Dims(local.size(), 0), local});
      return;
    }
    global = op.attrs.Ints("global_dims");
    const auto layout = mesh::Layout::Parse(op.attrs.Text("layout"), making.mesh());
    MT_CHECK(layout.ok());
    for (const int64_t rank : making.ranks) slices.push_back(layout->SliceOf(rank, global));
  }
};

// Calls fill(global index of the first element, local index, count) for the runs of the shard that
// are contiguous in the whole tensor, spread over threads; sets padding to zero bytes.
template <typename Fill>
void ForRuns(const Frame& f, const ShardSlices& p, std::byte* out, int64_t width, int64_t grain,
             const Fill& fill) {
  const mesh::Layout::Slice& slice = p.slices[f.device];
  const int64_t valid = mesh::NumElements(slice.sizes);
  if (valid < mesh::NumElements(p.local)) std::memset(out, 0, mesh::NumElements(p.local) * width);
  if (valid == 0) return;
  // Dimensions from `inner` on are whole: one run spans them, times the extent of the dimension
  // before.
  size_t inner = p.local.size();
  while (inner > 0 && slice.sizes[inner - 1] == p.global[inner - 1] &&
         p.local[inner - 1] == p.global[inner - 1]) {
    --inner;
  }
  const Dims global_strides = mesh::Strides(p.global), local_strides = mesh::Strides(p.local);
  int64_t run = 1;
  for (size_t d = inner == 0 ? 0 : inner - 1; d < p.local.size(); ++d) run *= slice.sizes[d];
  const size_t outer = inner == 0 ? 0 : inner - 1;  // dimensions that runs count
  const int64_t runs = valid / run;
  const auto ends = [&](int64_t r) {
    int64_t global = 0, local = 0;
    for (size_t d = outer; d-- > 0;) {
      const int64_t i = r % slice.sizes[d];
      r /= slice.sizes[d];
      global += (slice.offsets[d] + i) * global_strides[d];
      local += i * local_strides[d];
    }
    if (inner > 0) global += slice.offsets[inner - 1] * global_strides[inner - 1];
    return std::pair(global, local);
  };
  if (runs == 1) {
    const auto [global, local] = ends(0);
    f.For(run, grain, [&, g = global, l = local](int64_t begin, int64_t end) {
      fill(g + begin, l + begin, end - begin);
    });
    return;
  }
  f.For(runs, std::max<int64_t>(1, grain / run), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const auto [global, local] = ends(r);
      fill(global, local, run);
    }
  });
}

// Elements first .. first + n - 1 of a tensor that counts to `extent` along a dimension of stride
// `stride`. What has been counted once is copied.
template <typename T>
void Count(T* to, int64_t first, int64_t n, int64_t stride, int64_t extent) {
  const int64_t period = stride * extent, once = std::min(n, period);
  int64_t number = first / stride % extent, count = 0;
  if (stride == 1) {
    for (int64_t i = 0; i < once; i += count, number = 0) {
      count = std::min(extent - number, once - i);
      for (int64_t j = 0; j < count; ++j) to[i + j] = static_cast<T>(number + j);
    }
  } else {
    int64_t left = stride - first % stride;
    for (int64_t i = 0; i < once; i += count, left = stride) {
      count = std::min(left, once - i);
      std::fill_n(to + i, count, static_cast<T>(number));
      number = number + 1 == extent ? 0 : number + 1;
    }
  }
  const int64_t most = std::max<int64_t>(1, kGrain / period) * period;
  for (int64_t done = once; done < n; done += count) {
    count = std::min({done, most, n - done});
    std::memcpy(to + done, to, count * sizeof(T));
  }
}

template <typename T>
KernelPtr Iota(const Making& making, const TensorType& type, const Op& op) {
  const ShardSlices places(making, type, op);
  const auto axis = static_cast<size_t>(op.attrs.Int("axis"));
  const int64_t stride = mesh::Strides(places.global)[axis], extent = places.global[axis];
  const ValueId out = op.results[0];
  return MakeKernel([=](const Frame& f) {
    T* to = f.As<T>(out);
    ForRuns(f, places, f.at[out], sizeof(T), kGrain, [&](int64_t global, int64_t local, int64_t n) {
      Count(to + local, global, n, stride, extent);
    });
  });
}

template <typename T>
using Draw = void (*)(const PhiloxKey&, T, T, int64_t, std::span<T>);

template <typename T>
KernelPtr Random(const Making& making, const TensorType& type, const Op& op, Draw<T> draw,
                 const char* first, const char* second, int64_t grain) {
  const ShardSlices places(making, type, op);
  const std::vector<int64_t> seed = op.attrs.Ints("seed");
  const PhiloxKey key = PhiloxFromSeed(seed[0], seed[1]);
  const T a = static_cast<T>(op.attrs.Double(first)), b = static_cast<T>(op.attrs.Double(second));
  const ValueId out = op.results[0];
  return MakeKernel([=](const Frame& f) {
    T* to = f.As<T>(out);
    ForRuns(f, places, f.at[out], sizeof(T), grain, [&](int64_t global, int64_t local, int64_t n) {
      draw(key, a, b, global, {to + local, static_cast<size_t>(n)});
    });
  });
}

template <typename T>
KernelPtr RandomOf(const Making& making, const TensorType& type, const Op& op) {
  if (op.kind == "stateless_uniform") {
    return Random<T>(making, type, op, static_cast<Draw<T>>(FillUniform), "minval", "maxval",
                     kGrain / 2);
  }
  // A logarithm, a sine and a cosine for two numbers.
  if (op.kind == "stateless_normal") {
    return Random<T>(making, type, op, static_cast<Draw<T>>(FillNormal), "mean", "stddev",
                     kGrain / 16);
  }
  return Random<T>(making, type, op, static_cast<Draw<T>>(FillTruncatedNormal), "mean", "stddev",
                   kGrain / 16);
}

template <typename T>
KernelPtr DropoutMask(const Making& making, const TensorType& type, const Op& op) {
  const ShardSlices places(making, type, op);
  const float rate = static_cast<float>(op.attrs.Double("rate"));
  const T kept = static_cast<T>(1.0 / (1.0 - op.attrs.Double("rate")));
  const int64_t seed = op.attrs.Int("seed");
  const ValueId step = op.operands[0], out = op.results[0];
  return MakeKernel([=, path = std::string(program::PathDrawn(op))](const Frame& f) {
    const PhiloxKey key = DropoutKey(seed, path, *f.As<const int64_t>(step));
    T* to = f.As<T>(out);
    ForRuns(f, places, f.at[out], sizeof(T), kGrain / 2,
            [&](int64_t global, int64_t local, int64_t n) {
              constexpr int64_t kBatch = 1024;
              float numbers[kBatch];
              for (int64_t done = 0; done < n; done += kBatch) {
                const int64_t count = std::min(kBatch, n - done);
                FillUniform(key, 0.0f, 1.0f, global + done, std::span<float>(numbers, count));
                for (int64_t i = 0; i < count; ++i) {
                  to[local + done + i] = numbers[i] >= rate ? kept : T{0};
                }
              }
            });
  });
}

// The device's index along `axes`, first axis slowest.
std::vector<int64_t> IndicesAlong(const Making& making, const Op& op) {
  std::vector<int64_t> indices;
  for (const int64_t rank : making.ranks) {
    const std::vector<int64_t> at = making.mesh().Coordinates(rank);
    int64_t index = 0;
    for (const int64_t axis : op.attrs.Ints("axes")) {
      index = index * making.mesh().axis(axis).size + at[axis];
    }
    indices.push_back(index);
  }
  return indices;
}

// This device's chunk of a whole dimension, zeros past its end.
KernelPtr ShardSlice(const Making& making, const TensorType& to, const Op& op) {
  const TensorType& from = making.local().type(op.operands[0]);
  const auto dim = static_cast<size_t>(op.attrs.Int("dim"));
  const int64_t chunk = to.dims[dim];
  const Dims strides = mesh::Strides(from.dims);
  std::vector<StridedCopy> copies;
  std::vector<bool> padded;
  for (const int64_t index : IndicesAlong(making, op)) {
    Dims sizes = to.dims;
    sizes[dim] = std::clamp<int64_t>(from.dims[dim] - index * chunk, 0, chunk);
    padded.push_back(sizes[dim] < chunk);
    copies.emplace_back(sizes, strides, index * chunk * strides[dim], mesh::Strides(to.dims), 0,
                        DTypeBytes(to.dtype));
  }
  const ValueId in = op.operands[0], out = op.results[0];
  return MakeKernel([=, copies = std::move(copies), padded = std::move(padded),
                     bytes = to.num_bytes()](const Frame& f) {
    if (padded[f.device]) std::memset(f.at[out], 0, bytes);
    copies[f.device].Run(f, f.at[in], f.at[out]);
  });
}

// This device's block of what it has, `value` outside.
KernelPtr ShardWindow(const Making& making, const TensorType& to, const Op& op) {
  const TensorType& from = making.local().type(op.operands[0]);
  const auto dim = static_cast<size_t>(op.attrs.Int("dim"));
  const std::vector<int64_t> starts = op.attrs.Ints("starts");
  const Dims strides = mesh::Strides(from.dims), to_strides = mesh::Strides(to.dims);
  std::vector<StridedCopy> copies;
  std::vector<bool> fills;
  for (const int64_t index : IndicesAlong(making, op)) {
    const int64_t begin = std::max<int64_t>(0, starts[index]);
    const int64_t end = std::min(from.dims[dim], starts[index] + to.dims[dim]);
    Dims sizes = to.dims;
    sizes[dim] = std::max<int64_t>(0, end - begin);
    fills.push_back(sizes[dim] < to.dims[dim]);
    copies.emplace_back(sizes, strides, sizes[dim] == 0 ? 0 : begin * strides[dim], to_strides,
                        sizes[dim] == 0 ? 0 : (begin - starts[index]) * to_strides[dim],
                        DTypeBytes(to.dtype));
  }
  const Element value = ElementOf(to.dtype, op.attrs.Double("value"));
  const int64_t width = DTypeBytes(to.dtype), n = to.num_elements();
  const ValueId in = op.operands[0], out = op.results[0];
  return MakeKernel([=, copies = std::move(copies), fills = std::move(fills)](const Frame& f) {
    if (fills[f.device]) ActiveKernels().fill(f.at[out], value.bytes, width, n);
    copies[f.device].Run(f, f.at[in], f.at[out]);
  });
}

// The operand with the elements past the device's valid extent replaced.
KernelPtr MaskPad(const Making& making, const TensorType& type, const Op& op) {
  const auto dim = static_cast<size_t>(op.attrs.Int("dim"));
  const int64_t chunk = type.dims[dim];
  std::vector<int64_t> valid;
  for (const int64_t index : IndicesAlong(making, op)) {
    valid.push_back(std::clamp<int64_t>(op.attrs.Int("size") - index * chunk, 0, chunk));
  }
  const int64_t inner = mesh::Strides(type.dims)[dim], width = DTypeBytes(type.dtype);
  const int64_t outer = chunk * inner == 0 ? 0 : type.num_elements() / (chunk * inner);
  const Element value = ElementOf(type.dtype, op.attrs.Double("value"));
  const ValueId in = op.operands[0], out = op.results[0];
  return MakeKernel([=, valid = std::move(valid), bytes = type.num_bytes()](const Frame& f) {
    if (f.at[in] != f.at[out] && bytes > 0) std::memcpy(f.at[out], f.at[in], bytes);
    const int64_t keep = valid[f.device];
    if (keep == chunk) return;
    for (int64_t o = 0; o < outer; ++o) {
      std::byte* to = f.at[out] + (o * chunk + keep) * inner * width;
      ActiveKernels().fill(to, value.bytes, width, (chunk - keep) * inner);
    }
  });
}

KernelPtr IotaOf(const Making& making, const TensorType& type, const Op& op) {
  switch (type.dtype) {
    case DType::kF32:
      return Iota<float>(making, type, op);
    case DType::kF64:
      return Iota<double>(making, type, op);
    case DType::kI32:
      return Iota<int32_t>(making, type, op);
    case DType::kI64:
      return Iota<int64_t>(making, type, op);
    default:
      return Iota<uint8_t>(making, type, op);
  }
}

}  // namespace

Element ElementOf(DType dtype, double number) {
  Element e;
  mesh::WithElementType(dtype, [&](auto zero) {
    using T = decltype(zero);
    T element = std::is_same_v<T, bool> ? T(number != 0) : T();
    if constexpr (std::is_same_v<T, int64_t>) {
      element = mesh::ToI64(number);
    } else if constexpr (!std::is_same_v<T, bool>) {
      element = static_cast<T>(number);
    }
    std::memcpy(e.bytes, &element, sizeof element);
  });
  return e;
}

KernelPtr MakeSourceKernel(const Making& making, const Op& op) {
  const TensorType& type = making.local().type(op.results[0]);
  const bool f32 = type.dtype == DType::kF32;
  if (op.kind == "constant" || op.kind == "fill") return Constant(type, op);
  if (op.kind == "iota") return IotaOf(making, type, op);
  if (op.kind.starts_with("stateless_")) {
    return f32 ? RandomOf<float>(making, type, op) : RandomOf<double>(making, type, op);
  }
  if (op.kind == "dropout_mask") {
    return f32 ? DropoutMask<float>(making, type, op) : DropoutMask<double>(making, type, op);
  }
  if (op.kind == "shard_slice") return ShardSlice(making, type, op);
  if (op.kind == "shard_window") return ShardWindow(making, type, op);
  if (op.kind == "mask_pad") return MaskPad(making, type, op);
  return nullptr;
}

}  // namespace meshtrain::device::cpu
