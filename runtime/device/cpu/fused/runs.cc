#include "runtime/device/cpu/fused/runs.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

namespace meshtrain::device::cpu::fused {
namespace {

// Puts a block's instructions in an order in which runs are long. Each stays behind those whose
// results it reads, and writing and reading tensors, which may share their memory, keep their
// order.
class Joiner {
 public:
  explicit Joiner(const Code& code)
      : code_(code), left_(code.block.size(), true), after_(code.block.size()) {
    for (size_t later = 0; later < after_.size(); ++later) {
      for (size_t sooner = 0; sooner < later; ++sooner) {
        if (IsAfter(code.block[later], code.block[sooner])) after_[later].push_back(sooner);
      }
    }
  }

  // nullopt: there is no run.
  std::optional<Code> Join() {
    Code joined = code_;
    joined.block.clear();
    for (;;) {
      // What fits in no run, as soon as it can be: the longer are the runs that wait for it.
      auto at = NextReady([&](const Instruction& i) { return !Fits(i); });
      if (!at) at = NextReady([](const Instruction&) { return true; });
      if (!at) break;
      if (!Fits(code_.block[*at]) || !AddRun(code_.block[*at].row, &joined)) {
        joined.block.push_back(code_.block[*at]);
        left_[*at] = false;
      }
    }
    if (joined.runs.empty()) return std::nullopt;
    NumberRegisters(&joined);
    return joined;
  }

 private:
  static int Operand(const Instruction& i, int k) { return k == 0 ? i.a : k == 1 ? i.b : i.c; }
  static bool Reads(const Instruction& i, int base) {
    for (int k = 0; k < i.operands; ++k) {
      if (Operand(i, k) == base) return true;
    }
    return false;
  }
  static bool IsScalar(const Instruction& i, int k) { return (i.scalars & 1U << k) != 0; }
  static bool Writes(const Instruction& i) { return i.sum < 0; }
  bool IsTensor(int base) const { return code_.bases[base].kind == Base::kValue; }
  bool ReadsTensor(const Instruction& i) const {
    bool reads = i.load >= 0;
    for (int k = 0; k < i.operands; ++k) reads = reads || IsTensor(Operand(i, k));
    return reads;
  }

  bool IsAfter(const Instruction& later, const Instruction& sooner) const {
    if (Writes(sooner) && Reads(later, sooner.d)) return true;
    const bool sooner_writes = Writes(sooner) && IsTensor(sooner.d);
    const bool later_writes = Writes(later) && IsTensor(later.d);
    return (sooner_writes && ReadsTensor(later)) || (later_writes && ReadsTensor(sooner));
  }

  // The first that is left, that all it has to be after are not, and of which `condition` holds.
  template <typename Condition>
  std::optional<size_t> NextReady(const Condition& condition) const {
    for (size_t at = 0; at < left_.size(); ++at) {
      const auto is_left = [&](size_t sooner) { return left_[sooner]; };
      if (left_[at] && condition(code_.block[at]) && std::ranges::none_of(after_[at], is_left)) {
        return at;
      }
    }
    return std::nullopt;
  }

  bool Fits(const Instruction& i) const {
    // Constants whose inverse is a number like others are factors already (chain.cc).
    const bool by_constant = i.op == BlockOp::kDiv && IsScalar(i, 1) && !IsTensor(i.b);
    return i.fn != nullptr && i.type == Type::kF32 && RunOperands(i.op).has_value() && !by_constant;
  }

  // The longest run that can be next, of instructions on rows or of such on elements. False, and
  // nothing taken, where it would be of one.
  bool AddRun(bool row, Code* joined) {
    std::vector<size_t> members;
    Run longest;
    for (;;) {
      const auto at = NextReady([&](const Instruction& i) { return Fits(i) && i.row == row; });
      if (!at) break;
      members.push_back(*at);
      left_[*at] = false;
      Run run = RunOf(members);
      if (!Assembles(ActiveKernels(), run)) {
        left_[*at] = true;
        members.pop_back();
        break;
      }
      longest = std::move(run);
    }
    auto made = members.size() < 2 ? nullptr : Assemble(ActiveKernels(), longest);
    if (made == nullptr) {
      for (const size_t at : members) left_[at] = true;
      return false;
    }
    joined->block.push_back({.row = row, .run = static_cast<int>(joined->runs.size())});
    joined->runs.push_back(std::move(made));
    runs_.push_back(std::move(longest));
    return true;
  }

  // Of instructions that are not left.
  Run RunOf(const std::vector<size_t>& members) const {
    Run run;
    const auto add = [&](const RunValue& value) {
      run.values.push_back(value);
      return static_cast<int>(run.values.size()) - 1;
    };
    std::map<int, int> value_of, inverse_of;  // by base
    const auto operand = [&](const Instruction& i, int k) {
      const int at = Operand(i, k);
      if (const auto it = value_of.find(at); it != value_of.end()) return it->second;
      const Base& base = code_.bases[at];
      RunValue value{.kind = IsScalar(i, k) ? RunValue::kElement : RunValue::kMemory, .base = at};
      if (base.kind == Base::kConstant) {
        value = {.kind = RunValue::kConstant};
        std::memcpy(&value.constant, base.constant.bytes, sizeof value.constant);
      }
      return value_of[at] = add(value);
    };
    const auto inverse = [&](int base) {
      if (const auto it = inverse_of.find(base); it != inverse_of.end()) return it->second;
      const int made = add({.kind = RunValue::kInverse, .base = base});
      add({.kind = RunValue::kFactor, .base = base});
      return inverse_of[base] = made;
    };
    for (const size_t at : members) {
      const Instruction& i = code_.block[at];
      RunStep step{.op = i.op};
      if (i.op == BlockOp::kDiv && IsScalar(i, 1)) {
        const int by = inverse(i.b);
        step.in = {operand(i, 0), by, by + 1};
      } else {
        for (int k = 0; k < i.operands; ++k) step.in[k] = operand(i, k);
      }
      step.streams = IsTensor(i.d);
      if (step.streams || IsReadLater(i.d)) step.store = i.d;
      if (i.op != BlockOp::kCopy) step.made = add({.kind = RunValue::kMade});
      value_of[i.d] = i.op == BlockOp::kCopy ? step.in[0] : step.made;
      run.steps.push_back(step);
    }
    return run;
  }

  bool IsReadLater(int base) const {
    for (size_t at = 0; at < left_.size(); ++at) {
      if (left_[at] && Reads(code_.block[at], base)) return true;
    }
    return false;
  }

  // Registers anew: each from its writer to its last reader, or from the first block on.
  void NumberRegisters(Code* joined) const {
    struct Life {
      size_t from = 0, to = 0;
      bool whole = false;
    };
    std::map<int, Life> lives;  // by base
    const auto touch = [&](int base, size_t at, bool whole) {
      if (base < 0 || joined->bases[base].kind != Base::kRegister) return;
      Life& life = lives.try_emplace(base, Life{.from = at}).first->second;
      life.to = at;
      life.whole = life.whole || whole;
    };
    for (size_t at = 0; at < joined->block.size(); ++at) {
      const Instruction& i = joined->block[at];
      if (i.run >= 0) {
        for (const RunValue& value : runs_[i.run].values) touch(value.base, at, false);
        for (const RunStep& step : runs_[i.run].steps) touch(step.store, at, false);
        continue;
      }
      for (int k = 0; k < i.operands; ++k) touch(Operand(i, k), at, false);
      if (Writes(i)) touch(i.d, at, i.once);
    }
    std::vector<std::vector<Life>> taken;
    for (const auto& [base, life] : lives) {
      const auto is_apart = [&](const Life& other) {
        return !life.whole && !other.whole && (life.to < other.from || other.to < life.from);
      };
      size_t number = 0;
      while (number < taken.size() && !std::ranges::all_of(taken[number], is_apart)) ++number;
      if (number == taken.size()) taken.emplace_back();
      taken[number].push_back(life);
      joined->bases[base].offset = static_cast<int64_t>(number);
    }
    joined->registers = static_cast<int64_t>(taken.size());
    // Nothing is left of those that runs keep to themselves.
    for (size_t base = 0; base < joined->bases.size(); ++base) {
      Base& b = joined->bases[base];
      if (b.kind == Base::kRegister && !lives.contains(static_cast<int>(base))) b.offset = 0;
    }
  }

  const Code& code_;
  std::vector<bool> left_;  // by instruction: in neither a run nor the new block yet
  std::vector<std::vector<size_t>> after_;  // by instruction: those that it has to be after
  std::vector<Run> runs_;
};

}  // namespace

void JoinRuns(Code* code) {
  // The time to look grows with the square of a block, and few are that long.
  constexpr size_t kMostInstructions = 256;
  if (!Assembles(ActiveKernels()) || code->block.size() > kMostInstructions) return;
  if (auto joined = Joiner(*code).Join()) *code = *std::move(joined);
}

}  // namespace meshtrain::device::cpu::fused
