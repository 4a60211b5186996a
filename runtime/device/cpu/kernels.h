// The inner loops, one set per instruction set. The sources in kernels/ are compiled once for each
// (CMakeLists.txt), in a namespace of its own, and one set is picked at start (arithmetic.h).
//
// Kept true: the files in kernels/ call nothing that the linker could merge with another file's
// copy (no standard templates, no inline functions outside their namespace), so no code for a newer
// processor leaks into the rest. A result depends on the operands and, in the last bits, on the
// instruction set; never on how a loop was split.
#pragma once

#include <cstdint>

namespace meshtrain::device::cpu {

// As mesh::DType, which these files do not include. Checked in kernels.cc.
enum class Type : uint8_t { kBool, kU8, kI32, kI64, kF32, kF64, kBF16, kF16 };
inline constexpr int kTypes = 8;

// Operations on blocks of elements. a, b, c are operands, d the result.
enum class BlockOp : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kPow,
  kMaximum,
  kMinimum,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,  // d: bool
  kAnd,
  kOr,  // bool
  kNeg,
  kAbs,
  kSign,
  kFloor,
  kSquare,
  kSqrt,
  kRsqrt,
  kExp,
  kLog,
  kLog1p,
  kExpm1,
  kSin,
  kCos,
  kSoftplus,
  kErf,
  kTanh,
  kSigmoid,
  kRelu,
  kCopy,
  kNot,
  kSelect,  // a: bool, d = a ? b : c
  // Pairs that chains are full of, in one pass. f32 and f64 only; a is never a scalar.
  kMulAdd,      // a * b + c
  kMulSub,      // a * b - c
  kNegMulAdd,   // c - a * b
  kSquareMul,   // a * a * b
  kSqrtAdd,     // sqrt(a) + b
  kMulSqrtAdd,  // sqrt(a * b) + c
  kMulDiv,      // a * b / c, c a vector
  kKeepWhere,   // b * (a > c ? 1 : 0), the gradient of relu
  kCount,
};

// Which operands are one element for the whole block instead of one per element: bit 0 is a, bit 1
// b, bit 2 c.
using ScalarMask = unsigned;

// d[i] = op(a[i], b[i], c[i]) for i < n. d may be any of the operands, not overlap one in part. No
// alignment needed.
using BlockFn = void (*)(void* d, const void* a, const void* b, const void* c, int64_t n);

enum class Fold : uint8_t { kSum, kMax, kMin };

// Windows in a row. The channels of the first one's taps begin at taps[t], t < count; those of the
// next one `step` elements further on. Where a window has one place, that of the next one is
// `apart` elements further on.
struct WindowRow {
  const int64_t* taps = nullptr;
  int64_t count = 0;
  int64_t windows = 1, step = 0, apart = 0;
  int64_t channels = 0;
};

struct Kernels {
  const char* name;  // "v3"
  // Of operands of `type` (select: of b and c). Division by a scalar s multiplies by 1 / s, and is
  // off by 1.5 units in the last place at most. bf16 and f16 are copied, selected and cast only:
  // what computes with them computes in f32 (plan/widen.h). Null when there is no such loop: the
  // mask is not served (give the scalar as a block), or the operation means nothing.
  BlockFn (*block)(BlockOp op, Type type, ScalarMask scalars);
  BlockFn (*cast)(Type from, Type to);
  // d[i] = one element of `width` bytes.
  void (*fill)(void* d, const void* element, int64_t width, int64_t n);

  // Reductions of f32, f64, i32, i64, u8, bool (max and min only). fold_rows: d[j] (op)= over r <
  // rows of a[r*stride+j], j < n, in an order that depends on `rows` alone; with `first`, d starts
  // from row 0. fold_row: the fold of n contiguous elements, in a fixed tree (lanes, then
  // halves). A sum of f32 errs by at most 16 * 2^-24 of the sum of the magnitudes, for any number
  // of elements (kernels/reduce.cc says how).
  void (*fold_rows)(Fold fold, Type type, void* d, const void* a, int64_t rows, int64_t stride,
                    int64_t n, bool first);
  void (*fold_row)(Fold fold, Type type, void* d, const void* a, int64_t n);

  // The same sums of f32 or f64 before they are rounded, to be added to others. rows, n >= 1. Where
  // it is not the `first`, sum_rows adds to what d holds.
  void (*sum_rows)(Type type, double* d, const void* a, int64_t rows, int64_t stride, int64_t n,
                   bool first);
  void (*sum_row)(Type type, double* d, const void* a, int64_t n);
  // How many of n floats are not within [-limit, limit]; a NaN is not.
  int64_t (*count_beyond)(Type type, const void* a, int64_t n, double limit);

  // Over the last dimension of [rows, n], f32 or f64.
  void (*softmax)(Type type, bool log, void* d, const void* a, int64_t rows, int64_t n);
  // d[r] = log(sum_j exp a[r,j]) - a[r, label[r]]; NaN where the label is outside [0, n). Labels
  // i32 or i64.
  void (*sparse_xent)(Type type, Type labels, void* d, const void* a, const void* label,
                      int64_t rows, int64_t n);
  // d[r,j] = g[r] * (softmax(a)[r,j] - [j == label[r]]); NaN in the row where the label is outside.
  void (*sparse_xent_grad)(Type type, Type labels, void* d, const void* g, const void* a,
                           const void* label, int64_t rows, int64_t n);

  // Of f32 or f64, where a has the taps and d one place for each window. d = the sum of the taps;
  // or the largest, a NaN before all, -infinity where count = 0; or what v has where a is the
  // largest (the first of equals), 0 where count = 0. Of the gradient, g has one place for each
  // window and d has the taps: where a is the largest it becomes g, or g is `add`ed to it, and
  // elsewhere 0, or 0 is.
  void (*window_sum)(Type type, void* d, const void* a, const WindowRow& row);
  void (*window_max)(Type type, void* d, const void* a, const WindowRow& row);
  void (*window_pick)(Type type, void* d, const void* a, const void* v, const WindowRow& row);
  void (*window_max_grad)(Type type, void* d, const void* a, const void* g, const WindowRow& row,
                          bool add);

  void (*gemm_f64)(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const double* a, int64_t lda,
                   const double* b, int64_t ldb, double* c, int64_t ldc);

  // Philox 4x32-10 (Salmon et al., SC'11): `groups` times four words, from counter `group` on. key:
  // two words; counter: base of four words, a 128-bit little-endian number to which the group is
  // added.
  void (*philox)(const uint32_t key[2], const uint32_t counter[4], uint64_t group, int64_t groups,
                 uint32_t* d);
  // From words: the low 23 bits as a fraction of one, times scale plus low, each rounded (no fused
  // multiply-add).
  void (*uniform_f32)(const uint32_t* words, int64_t n, float scale, float low, float* d);
};

// The set that is settled (arithmetic.h). Where none is yet, the first call settles the best
// that this processor and the limit allow.
const Kernels& ActiveKernels();
// Null when this build or processor lacks it.
const Kernels* FindKernels(const char* name);

}  // namespace meshtrain::device::cpu
