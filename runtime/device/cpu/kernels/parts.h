// What the files of this folder give each other. MT_ISA is the namespace of the instruction set
// being compiled for.
#pragma once

#include "runtime/device/cpu/kernels.h"

#ifndef MT_ISA
#error "compiled once per instruction set, see runtime/device/CMakeLists.txt"
#endif

namespace meshtrain::device::cpu::MT_ISA {

// Of a vector register.
#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

BlockFn FindBlock(BlockOp op, Type type, ScalarMask scalars);
BlockFn FindCast(Type from, Type to);
void Fill(void* d, const void* element, int64_t width, int64_t n);
void FoldRows(Fold fold, Type type, void* d, const void* a, int64_t rows, int64_t stride, int64_t n,
              bool first);
void FoldRow(Fold fold, Type type, void* d, const void* a, int64_t n);
void SumRows(Type type, double* d, const void* a, int64_t rows, int64_t stride, int64_t n,
             bool first);
void SumRow(Type type, double* d, const void* a, int64_t n);
int64_t CountBeyond(Type type, const void* a, int64_t n, double limit);
void Softmax(Type type, bool log, void* d, const void* a, int64_t rows, int64_t n);
void SparseXent(Type type, Type labels, void* d, const void* a, const void* label, int64_t rows,
                int64_t n);
void SparseXentGrad(Type type, Type labels, void* d, const void* g, const void* a,
                    const void* label, int64_t rows, int64_t n);
void WindowSum(Type type, void* d, const void* a, const WindowRow& row);
void WindowMax(Type type, void* d, const void* a, const WindowRow& row);
void WindowPick(Type type, void* d, const void* a, const void* v, const WindowRow& row);
void WindowMaxGrad(Type type, void* d, const void* a, const void* g, const WindowRow& row,
                   bool add);
void GemmF64(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const double* a, int64_t lda,
             const double* b, int64_t ldb, double* c, int64_t ldc);
void Philox(const uint32_t key[2], const uint32_t counter[4], uint64_t group, int64_t groups,
            uint32_t* d);
void UniformF32(const uint32_t* words, int64_t n, float scale, float low, float* d);

}  // namespace meshtrain::device::cpu::MT_ISA
