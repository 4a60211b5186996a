#include "runtime/device/cpu/fused/machine_code.h"

#include <algorithm>
#include <bit>
#include <map>
#include <string_view>
#include <utility>

#include "runtime/base/mutex.h"
#include "runtime/device/cpu/fused/registers.h"

#if defined(__x86_64__)
#include <xbyak/xbyak.h>
#endif

namespace meshtrain::device::cpu::fused {

std::optional<int> RunOperands(BlockOp op) {
  switch (op) {
    case BlockOp::kNeg:
    case BlockOp::kAbs:
    case BlockOp::kSquare:
    case BlockOp::kSqrt:
    case BlockOp::kRsqrt:
    case BlockOp::kExp:
    case BlockOp::kTanh:
    case BlockOp::kSigmoid:
    case BlockOp::kRelu:
    case BlockOp::kCopy:
      return 1;
    case BlockOp::kAdd:
    case BlockOp::kSub:
    case BlockOp::kMul:
    case BlockOp::kDiv:
    case BlockOp::kMaximum:
    case BlockOp::kMinimum:
    case BlockOp::kSquareMul:
    case BlockOp::kSqrtAdd:
      return 2;
    case BlockOp::kMulAdd:
    case BlockOp::kMulSub:
    case BlockOp::kNegMulAdd:
    case BlockOp::kMulSqrtAdd:
    case BlockOp::kMulDiv:
    case BlockOp::kKeepWhere:
      return 3;
    default:
      return std::nullopt;
  }
}

#if defined(__x86_64__)

namespace {

constexpr size_t kMostBytes = size_t{32} << 10;
// How far before it is written memory is asked for. A line that several processors have read, as of
// a weight that all multiply by, has to be taken from the others first: a store begins with that
// when its turn has come, and the next one waits.
constexpr int kAheadBytes = 1024;

bool IsWide(const Kernels& kernels) { return std::string_view(kernels.name) == "v4"; }

using Xbyak::Address;
using Xbyak::Label;
using Xbyak::Xmm;

// One pass over the elements, a vector at a time, and once more with a mask for those that are
// left.
class Assembler final : public Xbyak::CodeGenerator {
 public:
  Assembler(Run run, Assignment assignment, bool wide)
      : CodeGenerator(kMostBytes, Xbyak::DontSetProtectRWE),
        run_(std::move(run)),
        assignment_(std::move(assignment)),
        wide_(wide) {
    EmitAll();
    ready();
    setProtectModeRE();
  }
  const Run& run() const { return run_; }
  bool wide() const { return wide_; }

 private:
  static constexpr int kFloat = sizeof(float);
  static constexpr int kEqualOrGreater = 0x1D, kEqualOrLess = 0x12, kGreater = 0x1E,
                       kNotLessOrEqual = 0x16, kLess = 0x11, kUnordered = 0x03;  // quiet

  int Lanes() const { return wide_ ? 16 : 8; }
  Xmm V(int index) const {
    if (wide_) return Xbyak::Zmm(index);
    return Xbyak::Ymm(index);
  }
  // 0 to 3.
  Xmm T(int index) const { return V(VectorRegisters(wide_) + index); }
  Xmm TailMask() const { return V(15); }  // AVX2
  const Xbyak::Opmask& TailBits() const { return k7; }

  // The number, in each lane.
  Address Constant(uint32_t bits) { return ptr[rip + pool_[bits]]; }
  Address Constant(float number) { return Constant(std::bit_cast<uint32_t>(number)); }

  Xbyak::Reg64 PointerTo(int base) const {
    const Xbyak::Reg64 registers[kPointers] = {rdx, r8,  r9,  r10, r11, rbx,
                                               rbp, r12, r13, r14, r15, rdi};
    const auto at = std::ranges::find(assignment_.pointers, base) - assignment_.pointers.begin();
    return registers[at];
  }

  void EmitAll() {
    const Xbyak::Reg64 callers[] = {rbx, rbp, r12, r13, r14, r15};
    const int pushed = std::clamp<int>(static_cast<int>(assignment_.pointers.size()) - 5, 0, 6);
    for (int i = 0; i < pushed; ++i) push(callers[i]);
    for (size_t v = 0; v < run_.values.size(); ++v) {
      if (OfOneElement(run_.values[v])) LoadElement(run_.values[v], V(assignment_.vector[v]));
    }
    // rdi, which holds the places, last.
    for (const int base : assignment_.pointers) mov(PointerTo(base), PlaceOf(base));

    // rax: bytes done; rcx: bytes of whole vectors; rsi: elements.
    Label loop, left, done;
    xor_(eax, eax);
    mov(rcx, rsi);
    and_(rcx, -Lanes());
    shl(rcx, 2);
    jz(left, T_NEAR);
    L(loop);
    EmitSteps(/*masked=*/false);
    add(rax, Lanes() * kFloat);
    cmp(rax, rcx);
    jb(loop, T_NEAR);
    L(left);
    and_(rsi, Lanes() - 1);
    jz(done, T_NEAR);
    Label lanes;
    if (wide_) {
      mov(ecx, -1);
      bzhi(ecx, ecx, esi);
      kmovd(TailBits(), ecx);
    } else {
      lea(rcx, ptr[rip + lanes]);
      shl(rsi, 2);
      sub(rcx, rsi);
      vmovups(TailMask(), ptr[rcx + Lanes() * kFloat]);
    }
    EmitSteps(/*masked=*/true);
    L(done);
    vzeroupper();
    for (int i = pushed; i-- > 0;) pop(callers[i]);
    ret();

    align(64);
    for (auto& [bits, label] : pool_) {
      L(label);
      for (int lane = 0; lane < Lanes(); ++lane) dd(bits);
    }
    if (!wide_) {
      L(lanes);
      for (int lane = 0; lane < 2 * Lanes(); ++lane) dd(lane < Lanes() ? ~0U : 0U);
    }
  }

  void LoadElement(const RunValue& value, const Xmm& to) {
    constexpr float kLarge = 0x1p64F, kSmall = 0x1p-64F;
    mov(rcx, PlaceOf(value.base));
    vbroadcastss(to, ptr[rcx]);
    if (value.kind == RunValue::kElement) return;
    vandps(T(0), to, Constant(0x7FFFFFFFU));
    vmovups(T(1), Constant(1.0F));
    vmovups(T(2), Constant(kLarge));
    Choose(T(1), T(0), Constant(kSmall), kLess, T(2), T(1), T(3));
    vmovups(T(2), Constant(kSmall));
    Choose(T(1), T(0), Constant(kLarge), kGreater, T(2), T(1), T(3));
    if (value.kind == RunValue::kFactor) {
      vmovaps(to, T(1));
      return;
    }
    vmulps(T(0), to, T(1));
    vmovups(T(1), Constant(1.0F));
    vdivps(to, T(1), T(0));
  }

  Address PlaceOf(int base) const {
    return ptr[rdi + base * static_cast<int>(sizeof(Place)) + static_cast<int>(offsetof(Place, p))];
  }

  void EmitSteps(bool masked) {
    std::vector<bool> loaded(run_.values.size());
    for (const RunStep& step : run_.steps) {
      for (const int v : step.in) {
        if (v < 0 || loaded[v] || run_.values[v].kind != RunValue::kMemory) continue;
        loaded[v] = true;
        const Xmm to = V(assignment_.vector[v]);
        const Address from = ptr[PointerTo(run_.values[v].base) + rax];
        if (!masked) {
          vmovups(to, from);
        } else if (wide_) {
          vmovups(to | TailBits() | T_z, from);
        } else {
          vmaskmovps(to, TailMask(), from);
        }
      }
      if (step.made >= 0) EmitOp(step, V(assignment_.vector[step.made]));
      if (step.store < 0) continue;
      const Xmm result =
          step.made >= 0 ? V(assignment_.vector[step.made]) : Register(step.in[0], T(0));
      const Address to = ptr[PointerTo(step.store) + rax];
      if (!masked) {
        if (step.streams) prefetchw(ptr[PointerTo(step.store) + rax + kAheadBytes]);
        vmovups(to, result);
      } else if (wide_) {
        vmovups(to | TailBits(), result);
      } else {
        vmaskmovps(to, TailMask(), result);
      }
    }
  }

  // Where the value is; a constant comes to `scratch`.
  Xmm Register(int v, const Xmm& scratch) {
    if (run_.values[v].kind != RunValue::kConstant) return V(assignment_.vector[v]);
    vmovups(scratch, Constant(run_.values[v].constant));
    return scratch;
  }

  // d = 1 where `how` holds of a and b, else 0.
  void One(const Xmm& d, const Xmm& a, const Xbyak::Operand& b, int how) {
    if (wide_) {
      vcmpps(k1, a, b, how);
      vmovups(d | k1 | T_z, Constant(1.0F));
    } else {
      vcmpps(d, a, b, how);
      vandps(d, d, Constant(1.0F));
    }
  }

  // d = yes where `how` holds of a and b, else `no`. d may be `no`, and `scratch` nothing else.
  void Choose(const Xmm& d, const Xmm& a, const Xbyak::Operand& b, int how, const Xmm& yes,
              const Xmm& no, const Xmm& scratch) {
    if (wide_) {
      vcmpps(k1, a, b, how);
      vblendmps(d | k1, no, yes);
    } else {
      vcmpps(scratch, a, b, how);
      vblendvps(d, no, yes, scratch);
    }
  }

  // The larger or the smaller; a NaN before all (Maximum in kernels/block.cc).
  void Extreme(const Xmm& d, const Xmm& a, const Xmm& b, int how) {
    if (wide_) {
      vcmpps(k1, a, b, how);
      vcmpps(k2, a, a, kUnordered);
      korw(k1, k1, k2);
      vblendmps(d | k1, b, a);
    } else {
      vcmpps(T(2), a, b, how);
      vcmpps(T(3), a, a, kUnordered);
      vorps(T(2), T(2), T(3));
      vblendvps(d, b, a, T(2));
    }
  }

  void EmitOp(const RunStep& step, const Xmm& d) {
    const Xmm a = Register(step.in[0], T(0));
    const Xmm b = step.in[1] < 0 ? a : Register(step.in[1], T(1));
    const Xmm c = step.in[2] < 0 ? a : Register(step.in[2], T(2));
    switch (step.op) {
      case BlockOp::kAdd:
        return vaddps(d, a, b);
      case BlockOp::kSub:
        return vsubps(d, a, b);
      case BlockOp::kMul:
        return vmulps(d, a, b);
      case BlockOp::kDiv:
        if (step.in[2] < 0) return vdivps(d, a, b);
        // The factor first: it takes digits from nothing that the result has.
        vmulps(d, a, c);
        return vmulps(d, d, b);
      case BlockOp::kMaximum:
        return Extreme(d, a, b, kEqualOrGreater);
      case BlockOp::kMinimum:
        return Extreme(d, a, b, kEqualOrLess);
      case BlockOp::kNeg:
        return vxorps(d, a, Constant(0x80000000U));
      case BlockOp::kAbs:
        return vandps(d, a, Constant(0x7FFFFFFFU));
      case BlockOp::kSquare:
        return vmulps(d, a, a);
      case BlockOp::kSqrt:
        return vsqrtps(d, a);
      case BlockOp::kRsqrt:
        vsqrtps(T(3), a);
        vmovups(d, Constant(1.0F));
        return vdivps(d, d, T(3));
      case BlockOp::kRelu:
        return Relu(d, a);
      case BlockOp::kSquareMul:
        vmulps(d, a, a);
        return vmulps(d, d, b);
      case BlockOp::kSqrtAdd:
        vsqrtps(d, a);
        return vaddps(d, d, b);
      case BlockOp::kMulAdd:
        vmovaps(d, a);
        return vfmadd213ps(d, b, c);
      case BlockOp::kMulSub:
        vmovaps(d, a);
        return vfmsub213ps(d, b, c);
      case BlockOp::kNegMulAdd:
        vmovaps(d, a);
        return vfnmadd213ps(d, b, c);
      case BlockOp::kMulSqrtAdd:
        vmulps(d, a, b);
        vsqrtps(d, d);
        return vaddps(d, d, c);
      case BlockOp::kMulDiv:
        vmulps(d, a, b);
        return vdivps(d, d, c);
      case BlockOp::kKeepWhere:
        One(d, a, c, kGreater);
        return vmulps(d, d, b);
      case BlockOp::kExp:
        return Exp(d, a);
      case BlockOp::kTanh:
        return Tanh(d, a);
      case BlockOp::kSigmoid:
        return Sigmoid(d, a);
      default:
        return;  // RunOperands has no other
    }
  }

  // A NaN stays.
  void Relu(const Xmm& d, const Xmm& a) {
    if (wide_) {
      vcmpps(k1, a, Constant(0.0F), kNotLessOrEqual);
      vmovaps(d | k1 | T_z, a);
    } else {
      vcmpps(d, a, Constant(0.0F), kNotLessOrEqual);
      vandps(d, d, a);
    }
  }

  // As PartsOfExp in kernels/math.h: q to `q`, n to `n`; x is spent.
  void PartsOfExp(const Xmm& q, const Xmm& n, const Xmm& x, const Xmm& scratch) {
    constexpr float kRound = 12582912.0F;
    vmovups(n, Constant(1.44269504088896341F));
    vfmadd213ps(n, x, Constant(kRound));
    vsubps(scratch, n, Constant(kRound));
    vpsubd(n, n, Constant(kRound));
    vfnmadd231ps(x, scratch, Constant(0.693359375F));
    vfnmadd231ps(x, scratch, Constant(-2.12194440e-4F));
    vmovups(q, Constant(1.9875691500e-4F));
    for (const float next : {1.3981999507e-3F, 8.3334519073e-3F, 4.1665795894e-2F, 1.6666665459e-1F,
                             5.0000001201e-1F}) {
      vfmadd213ps(q, x, Constant(next));
    }
    vmulps(scratch, x, x);
    vfmadd213ps(q, scratch, x);
  }

  // 2^n of whole numbers.
  void PowerOf2(const Xmm& n) {
    vpaddd(n, n, Constant(uint32_t{127}));
    vpslld(n, n, 23);
  }

  // d = e^x; spends T(0), which may be x, to T(2).
  void Exp(const Xmm& d, const Xmm& x) {
    vmovups(T(1), Constant(89.0F));
    vminps(T(0), T(1), x);  // x where one is NaN
    vmovups(T(1), Constant(-104.0F));
    vmaxps(T(0), T(1), T(0));
    PartsOfExp(d, T(1), T(0), T(2));
    vaddps(d, d, Constant(1.0F));
    vpsrad(T(0), T(1), 1);
    vpsubd(T(1), T(1), T(0));
    PowerOf2(T(0));
    PowerOf2(T(1));
    vmulps(d, d, T(0));
    vmulps(d, d, T(1));
  }

  void Sigmoid(const Xmm& d, const Xmm& x) {
    Xmm kept = x;
    if (x.getIdx() == T(0).getIdx()) {
      vmovaps(T(3), x);
      kept = T(3);
    }
    vorps(T(0), x, Constant(0x80000000U));
    Exp(d, T(0));
    vmovups(T(0), Constant(1.0F));
    vaddps(T(1), T(0), d);
    Choose(d, kept, Constant(0.0F), kLess, d, T(0), T(2));
    vdivps(d, d, T(1));
  }

  void Tanh(const Xmm& d, const Xmm& x) {
    vmovaps(T(3), x);
    vandps(T(0), x, Constant(0x7FFFFFFFU));
    vmovups(T(1), Constant(9.02F));
    vminps(T(0), T(1), T(0));
    vaddps(T(0), T(0), T(0));
    PartsOfExp(d, T(1), T(0), T(2));
    PowerOf2(T(1));
    vsubps(T(0), T(1), Constant(1.0F));
    vfmadd213ps(d, T(1), T(0));
    vaddps(T(0), d, Constant(2.0F));
    vdivps(d, d, T(0));
    vandps(d, d, Constant(0x7FFFFFFFU));
    vandps(T(3), T(3), Constant(0x80000000U));
    vorps(d, d, T(3));
  }

  const Run run_;
  const Assignment assignment_;
  const bool wide_;
  std::map<uint32_t, Label> pool_;
};

}  // namespace

bool Assembles(const Kernels& kernels) { return std::string_view(kernels.name) != "v2"; }

bool Assembles(const Kernels& kernels, const Run& run) {
  return Assembles(kernels) && Assign(run, IsWide(kernels)).has_value();
}

std::shared_ptr<const MachineCode> Assemble(const Kernels& kernels, const Run& run) {
  const bool wide = IsWide(kernels);
  auto assignment = Assembles(kernels) ? Assign(run, wide) : std::nullopt;
  if (!assignment) return nullptr;
  struct Known {
    Mutex mutex;
    std::vector<std::weak_ptr<const Assembler>> codes MT_GUARDED_BY(mutex);
  };
  static Known known;
  const auto code_of = [](std::shared_ptr<const Assembler> made) {
    const auto function = made->getCode<MachineCode::Function>();
    return std::make_shared<const MachineCode>(function, std::move(made));
  };
  MutexLock lock(known.mutex);
  std::erase_if(known.codes, [](const auto& code) { return code.expired(); });
  for (const auto& code : known.codes) {
    auto there = code.lock();
    if (there != nullptr && there->wide() == wide && there->run() == run) return code_of(there);
  }
  try {
    auto made = std::make_shared<const Assembler>(run, *std::move(assignment), wide);
    known.codes.emplace_back(made);
    return code_of(std::move(made));
  } catch (const Xbyak::Error&) {
    return nullptr;
  }
}

#else

bool Assembles(const Kernels&) { return false; }
bool Assembles(const Kernels&, const Run&) { return false; }
std::shared_ptr<const MachineCode> Assemble(const Kernels&, const Run&) { return nullptr; }

#endif

}  // namespace meshtrain::device::cpu::fused
