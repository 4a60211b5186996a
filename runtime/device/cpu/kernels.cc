#include "runtime/device/cpu/kernels.h"

#include <dnnl.h>

#include <atomic>
#include <iterator>
#include <optional>
#include <string_view>

#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/device/arithmetic.h"
#include "runtime/mesh/shape.h"

namespace meshtrain::device {
namespace cpu {

#define MT_SAME_TYPE(name) \
  static_assert(static_cast<int>(Type::name) == static_cast<int>(mesh::DType::name))
MT_SAME_TYPE(kBool);
MT_SAME_TYPE(kU8);
MT_SAME_TYPE(kI32);
MT_SAME_TYPE(kI64);
MT_SAME_TYPE(kF32);
MT_SAME_TYPE(kF64);
MT_SAME_TYPE(kBF16);
MT_SAME_TYPE(kF16);
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

// The best first.
constexpr const Kernels* kAll[] = {&v4::kTable, &v3::kTable, &v2::kTable};
constexpr std::string_view kOtherProcessors[] = {"base"};

// oneDNN's greatest set that holds no more than `name`. It takes one choice in a process' life,
// before its first use, and then ignores ONEDNN_MAX_CPU_ISA.
bool LimitOneDnn(std::string_view name) {
  const dnnl_cpu_isa_t isa = name == "v2"   ? dnnl_cpu_isa_sse41
                             : name == "v3" ? dnnl_cpu_isa_avx2
                                            : dnnl_cpu_isa_avx512_core;
  return dnnl_set_max_cpu_isa(isa) == dnnl_success;
}

}  // namespace

#else

namespace base {
extern const Kernels kTable;
}

namespace {

bool Has(std::string_view) { return true; }
constexpr const Kernels* kAll[] = {&base::kTable};
constexpr std::string_view kOtherProcessors[] = {"v2", "v3", "v4"};

bool LimitOneDnn(std::string_view) { return true; }

}  // namespace

#endif

const Kernels* FindKernels(const char* name) {
  for (const Kernels* k : kAll) {
    if (std::string_view(name) == k->name && Has(k->name)) return k;
  }
  return nullptr;
}

namespace {

// What the process has settled. `active` never changes once it is set.
struct Choice {
  std::atomic<int> product_threads = 0;
  std::atomic<const Kernels*> active = nullptr;
  Mutex mutex;
  const Kernels* most MT_GUARDED_BY(mutex) = nullptr;  // null: no limit
};
Choice& TheChoice() {
  static Choice choice;
  return choice;
}

const Kernels* BestWithin(const Kernels* most) {
  bool reached = most == nullptr;
  for (const Kernels* k : kAll) {
    reached = reached || k == most;
    if (reached && Has(k->name)) return k;
  }
  return kAll[std::size(kAll) - 1];
}

// The place in kAll, where the least is the last; nullopt for a name that is not there.
std::optional<size_t> PlaceOf(std::string_view name) {
  for (size_t i = 0; i < std::size(kAll); ++i) {
    if (name == kAll[i]->name) return i;
  }
  return std::nullopt;
}

Status CheckKnown(std::string_view name) {
  if (PlaceOf(name)) return OkStatus();
  for (const std::string_view other : kOtherProcessors) {
    if (name != other) continue;
    return FailedPrecondition("instruction set: expected one of this kind of processor (" +
                              std::string(kAll[0]->name) + "), got: " + std::string(name));
  }
  return InvalidArgument("instruction set: expected v2, v3, v4 or base, got: " + std::string(name));
}

const Kernels& SettleAtFirstUse() {
  Choice& choice = TheChoice();
  MutexLock lock(choice.mutex);
  if (const Kernels* active = choice.active.load()) return *active;
  const Kernels* best = BestWithin(choice.most);
  if (choice.most != nullptr && !LimitOneDnn(best->name)) {
    LogWarning("oneDNN does not keep to the limit: something else has chosen for it",
               {{"limit", best->name}});
  }
  choice.active.store(best);
  return *best;
}

}  // namespace

const Kernels& ActiveKernels() {
  const Kernels* active = TheChoice().active.load(std::memory_order_acquire);
  return active != nullptr ? *active : SettleAtFirstUse();
}

}  // namespace cpu

InstructionSets AvailableInstructionSets() {
  cpu::Choice& choice = cpu::TheChoice();
  MutexLock lock(choice.mutex);
  if (const cpu::Kernels* active = choice.active.load()) return {active->name, active->name};
  return {cpu::kAll[std::size(cpu::kAll) - 1]->name, cpu::BestWithin(choice.most)->name};
}

Result<bool> IsLesserInstructionSet(std::string_view a, std::string_view b) {
  MT_RETURN_IF_ERROR(cpu::CheckKnown(a));
  MT_RETURN_IF_ERROR(cpu::CheckKnown(b));
  return *cpu::PlaceOf(a) > *cpu::PlaceOf(b);
}

Status SettleInstructionSet(std::string_view name) {
  MT_RETURN_IF_ERROR(cpu::CheckKnown(name));
  cpu::Choice& choice = cpu::TheChoice();
  MutexLock lock(choice.mutex);
  const cpu::Kernels* wanted = cpu::kAll[*cpu::PlaceOf(name)];
  if (const cpu::Kernels* active = choice.active.load()) {
    if (active == wanted) return OkStatus();
    return FailedPrecondition("instruction set: expected to run with " + std::string(name) +
                              ", got: " + active->name + " is in use already");
  }
  if (!cpu::Has(name)) {
    return Unimplemented("instruction set: this processor lacks " + std::string(name));
  }
  if (!cpu::LimitOneDnn(name)) {
    return FailedPrecondition("instruction set: expected to choose " + std::string(name) +
                              " for oneDNN, got: it was used before, or told another");
  }
  choice.active.store(wanted);
  return OkStatus();
}

Status LimitInstructionSet(std::string_view name) {
  MT_RETURN_IF_ERROR(cpu::CheckKnown(name));
  cpu::Choice& choice = cpu::TheChoice();
  MutexLock lock(choice.mutex);
  const size_t place = *cpu::PlaceOf(name);
  if (const cpu::Kernels* active = choice.active.load();
      active != nullptr && *cpu::PlaceOf(active->name) < place) {
    return FailedPrecondition("instruction set: expected at most " + std::string(name) +
                              ", got: " + active->name + " is in use already");
  }
  choice.most = cpu::kAll[place];
  return OkStatus();
}

void SettleProductThreads(int threads) { cpu::TheChoice().product_threads.store(threads); }
int SettledProductThreads() { return cpu::TheChoice().product_threads.load(); }

}  // namespace meshtrain::device
