// Plays a plan's steps on places: which value stands where, whole, and who may still touch it. Runs
// for every plan, so it takes a time that is linear in the steps, but for finding a place in an
// ordered map where something is written.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>

#include "runtime/plan/internal.h"

namespace meshtrain::plan {
namespace {

using program::Op;
using program::Program;

class Player {
 public:
  Player(const Plan& plan, bool overlap)
      : plan_(plan),
        local_(plan.local()),
        overlap_(overlap),
        runs_(local_.ops.size()),
        marks_(local_.values.size()),
        pending_(overlap ? local_.values.size() : 0),
        inputs_(local_.inputs.size()),
        states_(local_.states.size()),
        outputs_(local_.outputs.size()) {}

  Status Play() {
    MT_RETURN_IF_ERROR(Begin());
    if (plan_.guard_step < 0 && !plan_.steps.empty() && !plan_.GuardValues().empty()) {
      return Internal("plan: no step stands before the guard; this is a bug of ours\n" +
                      StepsText(plan_));
    }
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      if (s + kAhead < plan_.steps.size()) {
        const Step& later = plan_.steps[s + kAhead];
        __builtin_prefetch(later.ops.data());
        __builtin_prefetch(later.reads.data());
        __builtin_prefetch(later.writes.data());
      }
      at_ = static_cast<int>(s);
      const Step& step = plan_.steps[s];
      if (at_ <= plan_.guard_step) MT_RETURN_IF_ERROR(LeavesStatesAlone(step));
      for (const int w : step.waits) MT_RETURN_IF_ERROR(Wait(w));
      MT_RETURN_IF_ERROR(step.kind == StepKind::kCopy ? Copy(step) : Compute(step));
      if (at_ == plan_.guard_step) MT_RETURN_IF_ERROR(GuardedAreWritten());
    }
    return End();
  }

 private:
  // What lies all over memory is fetched so many turns before its own.
  static constexpr size_t kAhead = 16;
  // What stands at [start, end) of a space.
  struct Content {
    int64_t end;
    ValueId value;
  };
  using Space = std::map<int64_t, Content>;  // by start; disjoint
  // What is known of a value. Steps are named by their index; -1: none.
  struct Mark {
    int made = -1;       // the last step that made it
    int read = -1;       // the last step that listed it among its reads
    int uses = 0;        // by the ops of step `read`
    bool whole = false;  // it stands in its own place
  };
  // The collectives under way that read or write a value.
  struct Pending {
    std::vector<int> readers;
    int writer = -1;  // -1: none
  };

  Status Wrong(std::string what) const {
    return Internal(
        fmt::format("plan: step {}: {}; this is a bug of ours\n{}", at_, what, StepsText(plan_)));
  }

  bool Known(ValueId v) const { return v >= 0 && v < static_cast<ValueId>(plan_.slots.size()); }

  // A scalar constant that fused steps take from its op.
  bool IsImmediate(ValueId v) const {
    const int producer = local_.values[v].op;
    return plan_.slots[v].kind == SlotKind::kNone && producer >= 0 && ops_[producer].constant &&
           (local_.type(v).dims.empty() || local_.type(v).num_elements() == 1);
  }

  int64_t Bytes(ValueId v) const { return bytes_[v]; }

  // Of a slot that CheckSlot has found to be right.
  Space& SpaceOf(const Slot& slot) {
    switch (slot.kind) {
      case SlotKind::kInput:
        return inputs_[slot.index];
      case SlotKind::kState:
        return states_[slot.index];
      case SlotKind::kOutput:
        return outputs_[slot.index];
      case SlotKind::kArena:
      case SlotKind::kNone:
        break;
    }
    return arena_;
  }

  // Whether `v`'s own place begins at `start` of the space that `slot` is in.
  bool IsOwnPlace(ValueId v, const Slot& slot, int64_t start) const {
    const Slot& own = plan_.slots[v];
    return own.kind == slot.kind && own.offset == start &&
           (slot.kind == SlotKind::kArena || own.index == slot.index);
  }

  Status CheckSlot(const Slot& slot, int64_t bytes) const {
    int64_t space = -1;  // bytes of what the slot is in
    const auto of = [&](const std::vector<int64_t>& list) {
      if (slot.index >= 0 && slot.index < static_cast<int>(list.size())) space = list[slot.index];
    };
    switch (slot.kind) {
      case SlotKind::kNone:
        return Wrong("a place was expected, got: none");
      case SlotKind::kArena:
        space = plan_.arena_bytes;
        break;
      case SlotKind::kInput:
        of(input_bytes_);
        break;
      case SlotKind::kState:
        of(state_bytes_);
        break;
      case SlotKind::kOutput:
        of(output_bytes_);
        break;
    }
    if (slot.offset >= 0 && slot.bytes >= bytes && slot.offset + slot.bytes <= space) {
      return OkStatus();
    }
    return Wrong(fmt::format("a place of {} bytes at {} does not hold {} bytes inside its buffer",
                             slot.bytes, slot.offset, bytes));
  }

  std::span<const ValueId> OperandsOf(int op) const {
    return std::span(lists_).subspan(ops_[op].begin, ops_[op].operands);
  }
  std::span<const ValueId> ResultsOf(int op) const {
    return std::span(lists_).subspan(ops_[op].begin + ops_[op].operands, ops_[op].results);
  }

  Status Begin() {
    if (plan_.slots.size() != local_.values.size()) return Wrong("not every value has a slot");
    // Ops and types lie all over memory: what is asked of them is read once, in their order.
    bytes_.reserve(local_.values.size());
    for (size_t v = 0; v < local_.values.size(); ++v) {
      if (v + kAhead < local_.values.size()) {
        __builtin_prefetch(local_.values[v + kAhead].type.dims.data());
      }
      bytes_.push_back(local_.values[v].type.num_bytes());
    }
    lists_.reserve(4 * local_.ops.size());
    ops_.reserve(local_.ops.size());
    for (size_t i = 0; i < local_.ops.size(); ++i) {
      if (i + kAhead < local_.ops.size()) {
        __builtin_prefetch(local_.ops[i + kAhead].operands.data());
        __builtin_prefetch(local_.ops[i + kAhead].results.data());
      }
      const Op& op = local_.ops[i];
      ops_.push_back({.begin = static_cast<int32_t>(lists_.size()),
                      .operands = static_cast<int32_t>(op.operands.size()),
                      .results = static_cast<int32_t>(op.results.size()),
                      .constant = op.kind == "constant"});
      for (const ValueId v : op.operands) lists_.push_back(v);
      for (const ValueId v : op.results) lists_.push_back(v);
    }
    for (const program::Port& p : local_.inputs) input_bytes_.push_back(Bytes(p.value));
    for (const program::State& s : local_.states) state_bytes_.push_back(Bytes(s.entry));
    for (const program::Port& p : local_.outputs) output_bytes_.push_back(Bytes(p.value));
    for (const program::Port& p : local_.inputs) MT_RETURN_IF_ERROR(Enter(p.value));
    for (const program::State& s : local_.states) MT_RETURN_IF_ERROR(Enter(s.entry));
    return OkStatus();
  }

  Status Enter(ValueId v) {
    MT_RETURN_IF_ERROR(CheckSlot(plan_.slots[v], Bytes(v)));
    return Write(plan_.slots[v], v);
  }

  // The value that stands at `slot`, whole; -1: none does.
  ValueId At(const Slot& slot) {
    const Space& space = SpaceOf(slot);
    const auto it = space.find(slot.offset);
    return it != space.end() && it->second.end - it->first == slot.bytes ? it->second.value : -1;
  }

  Status Read(ValueId v) {
    if (!marks_[v].whole) {
      const Slot& slot = plan_.slots[v];
      MT_RETURN_IF_ERROR(CheckSlot(slot, Bytes(v)));
      if (slot.bytes > 0) {
        return Wrong(fmt::format("reads %{}, whose place holds {}", v, Name(At(slot))));
      }
    }
    if (overlap_ && pending_[v].writer >= 0) {
      return Wrong(fmt::format("reads %{} without waiting for step {}, which writes it", v,
                               pending_[v].writer));
    }
    return OkStatus();
  }

  static std::string Name(ValueId v) { return v < 0 ? "nothing whole" : fmt::format("%{}", v); }

  // `v` stands at `slot` from now on. What stood there must not be in use: by this step, unless it
  // works in place, or by a collective that is under way.
  Status Write(const Slot& slot, ValueId v) {
    if (slot.bytes == 0) return OkStatus();
    Space& space = SpaceOf(slot);
    const int64_t end = slot.offset + slot.bytes;
    auto it = space.lower_bound(slot.offset);
    if (it != space.begin() && std::prev(it)->second.end > slot.offset) --it;
    Space::node_type node;  // of what stood there, to be used again
    while (it != space.end() && it->first < end) {
      const ValueId old = it->second.value;
      const bool own = IsOwnPlace(old, slot, it->first);
      MT_RETURN_IF_ERROR(MayGo(old, own, v));
      if (own) marks_[old].whole = false;
      const auto next = std::next(it);
      node = space.extract(it);
      it = next;
    }
    if (node.empty()) {
      space.emplace_hint(it, slot.offset, Content{end, v});
    } else {
      node.key() = slot.offset;
      node.mapped() = {end, v};
      space.insert(it, std::move(node));
    }
    if (IsOwnPlace(v, slot, slot.offset)) marks_[v].whole = plan_.slots[v].bytes == slot.bytes;
    return OkStatus();
  }

  // Whether this step may write `v` over `old`, in old's `own` place or a copy of it.
  Status MayGo(ValueId old, bool own, ValueId v) const {
    const Mark& mark = marks_[old];
    if (mark.made == at_) {
      return Wrong(fmt::format("writes %{} and %{} to places that overlap", old, v));
    }
    if (own && mark.read == at_ && !InPlace(plan_.steps[at_], old, v)) {
      return Wrong(fmt::format("writes %{} over %{} while it reads that", v, old));
    }
    if (!overlap_) return OkStatus();
    const auto in_use = [&](int user) {
      return Wrong(fmt::format("writes over %{}, which step {} may still use", old, user));
    };
    for (const int user : pending_[old].readers) {
      if (user != at_) return in_use(user);
    }
    const int writer = pending_[old].writer;
    return writer >= 0 && writer != at_ ? in_use(writer) : OkStatus();
  }

  Status Wait(int w) {
    if (w < 0 || w >= at_ || plan_.steps[w].kind != StepKind::kCollective) {
      return Wrong(fmt::format("waits for step {}, which is no collective before it", w));
    }
    if (!overlap_) return OkStatus();
    const Step& step = plan_.steps[w];
    for (const ValueId v : step.reads) {
      std::erase(pending_[v].readers, w);
    }
    for (const ValueId v : step.writes) {
      if (pending_[v].writer == w) pending_[v].writer = -1;
    }
    return OkStatus();
  }

  Status Compute(const Step& step) {
    const bool one = step.kind == StepKind::kOp;
    if (step.ops.empty() || (one && step.ops.size() != 1)) return Wrong("has no op, or too many");
    MT_RETURN_IF_ERROR(ReadsAndWrites(step));
    for (const ValueId v : step.reads) MT_RETURN_IF_ERROR(Read(v));
    for (const ValueId v : step.writes) {
      MT_RETURN_IF_ERROR(CheckSlot(plan_.slots[v], Bytes(v)));
      if (plan_.slots[v].kind == SlotKind::kInput) return Wrong("writes to an input");
    }
    if (step.kind == StepKind::kCollective && overlap_) {
      for (const ValueId v : step.reads) pending_[v].readers.push_back(at_);
    }
    for (const ValueId v : step.writes) {
      MT_RETURN_IF_ERROR(Write(plan_.slots[v], v));
      if (step.kind == StepKind::kCollective && overlap_) pending_[v].writer = at_;
    }
    return OkStatus();
  }

  // What the step says that it reads and writes is what its ops do, in an order that can be.
  Status ReadsAndWrites(const Step& step) {
    const auto other = [this](const char* what) {
      return Wrong(fmt::format("lists other {} than its ops have", what));
    };
    for (const ValueId v : step.reads) {
      if (!Known(v) || marks_[v].read == at_) return other("reads");
      marks_[v].read = at_;
      marks_[v].uses = 0;
    }
    size_t reads = 0, writes = 0;
    int previous = -1;
    for (const int i : step.ops) {
      if (i <= previous || i >= static_cast<int>(local_.ops.size())) {
        return Wrong(fmt::format("op #{} stands out of order", i));
      }
      previous = i;
      if (runs_[i]) return Wrong(fmt::format("op #{} runs twice", i));
      runs_[i] = true;
      for (const ValueId v : OperandsOf(i)) {
        Mark& mark = marks_[v];
        if (mark.made == at_) {
          if (step.kind == StepKind::kFused) continue;
          return Wrong(fmt::format("%{} is read by the step that makes it", v));
        }
        if (mark.read == at_) {
          if (++mark.uses == 1) ++reads;
        } else if (step.kind != StepKind::kFused || !IsImmediate(v)) {
          return other("reads");
        }
      }
      for (const ValueId v : ResultsOf(i)) {
        marks_[v].made = at_;
        if (plan_.slots[v].kind != SlotKind::kNone) ++writes;
      }
    }
    if (reads != step.reads.size()) return other("reads");
    // One that is listed twice is found where it is written over itself.
    for (const ValueId v : step.writes) {
      if (!Known(v) || marks_[v].made != at_) return other("writes");
    }
    return writes == step.writes.size() ? OkStatus() : other("writes");
  }

  // Whether the step may write one value to the place of another that it reads: a chain at the same
  // index, an all-reduce or a reshape on its own operand.
  bool InPlace(const Step& step, ValueId read, ValueId written) const {
    if (plan_.slots[read].offset != plan_.slots[written].offset) return false;
    if (step.kind == StepKind::kFused) return AtTheSameIndex(local_, step, read, written);
    const int producer = local_.values[written].op;
    if (producer < 0) return false;
    const program::Op& op = local_.ops[producer];
    if (op.kind != "all_reduce" && op.kind != "reshape") return false;
    return op.operands[0] == read && marks_[read].uses == 1;
  }

  Status Copy(const Step& step) {
    MT_RETURN_IF_ERROR(CheckSlot(step.copy_from, step.copy_to.bytes));
    MT_RETURN_IF_ERROR(CheckSlot(step.copy_to, step.copy_to.bytes));
    if (step.copy_to.kind == SlotKind::kInput) return Wrong("writes to an input");
    if (step.copy_to.bytes == 0) return OkStatus();
    const ValueId v = At(step.copy_from);
    if (v < 0) return Wrong("copies a place that holds nothing whole");
    if (overlap_ && pending_[v].writer >= 0) {
      return Wrong(fmt::format("copies %{} without waiting for step {}", v, pending_[v].writer));
    }
    return Write(step.copy_to, v);
  }

  Status LeavesStatesAlone(const Step& step) const {
    bool changes = step.kind == StepKind::kCopy && step.copy_to.kind == SlotKind::kState;
    for (const ValueId v : step.writes) {
      changes = changes || (Known(v) && plan_.slots[v].kind == SlotKind::kState);
    }
    return changes ? Wrong("changes a state before the guard") : OkStatus();
  }

  Status GuardedAreWritten() {
    for (const ValueId v : plan_.GuardValues()) {
      const Slot& place = plan_.slots[v];
      MT_RETURN_IF_ERROR(CheckSlot(place, Bytes(v)));
      if (place.bytes == 0 || marks_[v].whole) continue;
      return Wrong(fmt::format("the guard finds {}, not %{}", Name(At(place)), v));
    }
    return OkStatus();
  }

  Status OutputIsWritten(int i) {
    const ValueId v = local_.outputs[i].value;
    const Slot place{SlotKind::kOutput, i, 0, output_bytes_[i]};
    if (place.bytes == 0 || At(place) == v) return OkStatus();
    return Wrong(fmt::format("output {} (`{}`) holds {}, not %{}", i, local_.outputs[i].name,
                             Name(At(place)), v));
  }

  Status End() {
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (runs_[i]) continue;
      if (ops_[i].results == 1 && IsImmediate(ResultsOf(static_cast<int>(i))[0])) continue;
      return Wrong(fmt::format("op #{} (`{}`) is in no step", i, local_.ops[i].kind));
    }
    for (size_t i = 0; i < local_.outputs.size(); ++i) {
      MT_RETURN_IF_ERROR(OutputIsWritten(static_cast<int>(i)));
    }
    for (size_t i = 0; i < local_.states.size(); ++i) {
      const program::State& state = local_.states[i];
      const Slot place{SlotKind::kState, static_cast<int>(i), 0, state_bytes_[i]};
      if (place.bytes == 0 || At(place) == state.exit) continue;
      return Wrong(fmt::format("state {} (`{}`) holds {}, not %{}", i, state.name, Name(At(place)),
                               state.exit));
    }
    return OkStatus();
  }

  const Plan& plan_;
  const Program& local_;
  const bool overlap_;
  int at_ = 0;  // the step
  // What is asked of ops, in one piece: steps take them in an order of their own.
  struct OpLists {
    int32_t begin;  // in lists_: operands, then results
    int32_t operands, results;
    bool constant;
  };
  std::vector<OpLists> ops_;
  std::vector<ValueId> lists_;
  std::vector<bool> runs_;        // per op, whether a step has it
  std::vector<Mark> marks_;       // per value
  std::vector<Pending> pending_;  // per value, with `overlap_`
  std::vector<int64_t> bytes_;    // per value
  std::vector<int64_t> input_bytes_, state_bytes_, output_bytes_;
  Space arena_;
  std::vector<Space> inputs_, states_, outputs_;
};

}  // namespace

Status Verify(const Plan& plan, bool overlap) { return Player(plan, overlap).Play(); }

}  // namespace meshtrain::plan
