#include "runtime/device/cpu/kernels.h"

#include <string_view>

#include "runtime/mesh/shape.h"

namespace meshtrain::device::cpu {

#define MT_SAME_TYPE(name) \
  static_assert(static_cast<int>(Type::name) == static_cast<int>(mesh::DType::name))
MT_SAME_TYPE(kBool);
MT_SAME_TYPE(kU8);
MT_SAME_TYPE(kI32);
MT_SAME_TYPE(kI64);
MT_SAME_TYPE(kF32);
MT_SAME_TYPE(kF64);
#undef MT_SAME_TYPE

#if defined(__x86_64__)

namespace v2 {
extern const Kernels kTable;
}
namespace v3 {
extern const Kernels kTable;
}
namespace v4 {
extern const Kernels kTable;
}

namespace {

bool Has(std::string_view name) {
  __builtin_cpu_init();
  if (name == "v2") return true;  // the least that the build asks for
  if (name == "v3") {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  }
  return Has("v3") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

constexpr const Kernels* kAll[] = {&v4::kTable, &v3::kTable, &v2::kTable};

}  // namespace

#else

namespace base {
extern const Kernels kTable;
}

namespace {

bool Has(std::string_view) { return true; }
constexpr const Kernels* kAll[] = {&base::kTable};

}  // namespace

#endif

const Kernels* FindKernels(const char* name) {
  for (const Kernels* k : kAll) {
    if (std::string_view(name) == k->name && Has(k->name)) return k;
  }
  return nullptr;
}

const Kernels& ActiveKernels() {
  static const Kernels& best = [&]() -> const Kernels& {
    for (const Kernels* k : kAll) {
      if (Has(k->name)) return *k;
    }
    return *kAll[0];
  }();
  return best;
}

}  // namespace meshtrain::device::cpu
