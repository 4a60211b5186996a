// One op made ready to run: attributes read, loops and sizes chosen, nothing left to look up or
// allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "runtime/device/cpu/bounds.h"
#include "runtime/device/cpu/pool.h"
#include "runtime/plan/plan.h"

namespace meshtrain::device::cpu {

enum class Fold : uint8_t;  // kernels.h
enum class Type : uint8_t;

// One device in one step.
struct Frame {
  std::byte* const* at =
      nullptr;  // per value of the local program: where it is; null where it is not stored
  std::byte* scratch = nullptr;  // Kernel::scratch_bytes() of it, 64-byte aligned
  Pool* pool = nullptr;          // null: on the calling thread alone
  int device = 0;                // index into the local ranks

  template <typename T>
  T* As(program::ValueId v) const {
    return reinterpret_cast<T*>(at[v]);
  }
  // body(begin, end) for pieces that cover [0, n).
  template <typename Body>
  void For(int64_t n, int64_t grain, const Body& body) const {
    if (pool != nullptr) {
      pool->For(n, grain, body);
    } else if (n > 0) {
      body(int64_t{0}, n);
    }
  }
};

// Run is const: devices run one kernel at the same time.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void Run(const Frame& frame) const = 0;
  int64_t scratch_bytes() const { return scratch_bytes_; }

 protected:
  int64_t scratch_bytes_ = 0;
};
using KernelPtr = std::unique_ptr<Kernel>;

template <typename Body>
KernelPtr MakeKernel(Body body, int64_t scratch_bytes = 0) {
  class Of final : public Kernel {
   public:
    Of(Body b, int64_t scratch) : body_(std::move(b)) { scratch_bytes_ = scratch; }
    void Run(const Frame& frame) const override { body_(frame); }

   private:
    Body body_;
  };
  return std::make_unique<Of>(std::move(body), scratch_bytes);
}

// What a kernel is made from.
struct Making {
  const plan::Plan& plan;
  std::span<const int64_t> ranks;  // of the local devices
  int threads = 1;                 // that a kernel may spread over
  std::shared_ptr<Bounds> bounds;  // of the executable that the kernel is of
  const program::Program& local() const { return plan.partitioned.local; }
  const mesh::Mesh& mesh() const { return plan.partitioned.mesh; }
};

// The elements below which a loop of little work per element stays on one thread.
inline constexpr int64_t kGrain = 16384;

// Of scratch memory and of buffers, in bytes.
inline constexpr int64_t kAlignment = 64;
inline int64_t AlignedBytes(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Errors: kUnimplemented for an op that computes with 16-bit floats, which Backend::Lower leaves
// none of; no kernel would say that it cannot.
Status CheckWidened(const Making& making, const program::Op& op);
// Errors: kUnimplemented naming the op.
Result<KernelPtr> MakeOpKernel(const Making& making, const program::Op& op);
// A chain of element-wise ops over one index space (fused/fused.cc). Errors: kUnimplemented.
Result<KernelPtr> MakeFusedKernel(const Making& making, std::span<const int> ops);
// True for the ops that MakeFusedKernel knows.
bool IsElementwise(const program::Op& op);
// ... or one that a chain may hold beside such ops: a fold of rows, a reshape of what it gives.
bool IsFused(const program::Op& op);
// Of a reduction that folds; none of another op.
std::optional<Fold> FoldOf(const program::Op& op);
// The sums of n columns of f32 or f64 from those of `count` parts, which are f64 and lie `stride`
// apart: added in order, rounded once. Overwrites the first part's.
void AddParts(Type type, double* parts, int64_t count, int64_t stride, int64_t n, std::byte* to);

// The families; null when the op is not of the family.
KernelPtr MakeLinearKernel(const Making& making, const program::Op& op);
KernelPtr MakeShapeKernel(const Making& making, const program::Op& op);
KernelPtr MakeReduceKernel(const Making& making, const program::Op& op);
KernelPtr MakeIndexKernel(const Making& making, const program::Op& op);
KernelPtr MakeSourceKernel(const Making& making, const program::Op& op);
KernelPtr MakeGatherKernel(const Making& making, const program::Op& op);
KernelPtr MakeSortKernel(const Making& making, const program::Op& op);
KernelPtr MakeWindowKernel(const Making& making, const program::Op& op);

// The number as an element of `dtype`, in the first bytes of the result.
struct Element {
  alignas(8) std::byte bytes[8] = {};
};
Element ElementOf(mesh::DType dtype, double number);

}  // namespace meshtrain::device::cpu
