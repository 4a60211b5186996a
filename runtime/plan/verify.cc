// Plays a plan's steps on places: which value stands where, whole, and who may still touch it.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

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
        runs_(local_.ops.size(), 0),
        pending_(local_.values.size()) {}

  Status Play() {
    MT_RETURN_IF_ERROR(Begin());
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
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
  // What stands at [start, end) of a space.
  struct Content {
    int64_t end;
    ValueId value;
  };
  using Space = std::map<int64_t, Content>;  // by start; disjoint
  using SpaceKey = std::pair<SlotKind, int>;
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
    return plan_.slots[v].kind == SlotKind::kNone && producer >= 0 &&
           local_.ops[producer].kind == "constant" && local_.type(v).num_elements() == 1;
  }

  Space& SpaceOf(const Slot& slot) {
    return spaces_[{slot.kind, slot.kind == SlotKind::kArena ? 0 : slot.index}];
  }

  static bool Meet(const Slot& a, const Slot& b) {
    return a.kind == b.kind && a.index == b.index && a.bytes > 0 && b.bytes > 0 &&
           a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  }

  Status CheckSlot(const Slot& slot, int64_t bytes) const {
    const auto count = [](const auto& list) { return static_cast<int>(list.size()); };
    bool fits = slot.offset >= 0 && slot.bytes >= bytes;
    switch (slot.kind) {
      case SlotKind::kNone:
        return Wrong("a place was expected, got: none");
      case SlotKind::kArena:
        fits = fits && slot.offset + slot.bytes <= plan_.arena_bytes;
        break;
      case SlotKind::kInput:
        fits = fits && slot.index < count(local_.inputs) &&
               slot.offset + slot.bytes <= local_.type(local_.inputs[slot.index].value).num_bytes();
        break;
      case SlotKind::kState:
        fits = fits && slot.index < count(local_.states) &&
               slot.offset + slot.bytes <= local_.type(local_.states[slot.index].entry).num_bytes();
        break;
      case SlotKind::kOutput:
        fits =
            fits && slot.index < count(local_.outputs) &&
            slot.offset + slot.bytes <= local_.type(local_.outputs[slot.index].value).num_bytes();
        break;
    }
    if (fits) return OkStatus();
    return Wrong(fmt::format("a place of {} bytes at {} does not hold {} bytes inside its buffer",
                             slot.bytes, slot.offset, bytes));
  }

  Status Begin() {
    if (plan_.slots.size() != local_.values.size()) return Wrong("not every value has a slot");
    for (const program::Port& p : local_.inputs) {
      MT_RETURN_IF_ERROR(CheckSlot(plan_.slots[p.value], local_.type(p.value).num_bytes()));
      Put(plan_.slots[p.value], p.value);
    }
    for (const program::State& s : local_.states) {
      MT_RETURN_IF_ERROR(CheckSlot(plan_.slots[s.entry], local_.type(s.entry).num_bytes()));
      Put(plan_.slots[s.entry], s.entry);
    }
    return OkStatus();
  }

  void Put(const Slot& slot, ValueId v) {
    if (slot.bytes > 0) SpaceOf(slot)[slot.offset] = {slot.offset + slot.bytes, v};
  }

  // The value that stands at `slot`, whole; -1: none does.
  ValueId At(const Slot& slot) {
    const Space& space = SpaceOf(slot);
    const auto it = space.find(slot.offset);
    return it != space.end() && it->second.end - it->first == slot.bytes ? it->second.value : -1;
  }

  Status Read(ValueId v) {
    if (!Known(v)) return Wrong(fmt::format("reads %{}, which the program does not have", v));
    const Slot& slot = plan_.slots[v];
    MT_RETURN_IF_ERROR(CheckSlot(slot, local_.type(v).num_bytes()));
    if (slot.bytes > 0 && At(slot) != v) {
      return Wrong(fmt::format("reads %{}, whose place holds {}", v, Name(At(slot))));
    }
    if (pending_[v].writer >= 0) {
      return Wrong(fmt::format("reads %{} without waiting for step {}, which writes it", v,
                               pending_[v].writer));
    }
    return OkStatus();
  }

  static std::string Name(ValueId v) { return v < 0 ? "nothing whole" : fmt::format("%{}", v); }

  // `v` stands at `slot` from now on. What stood there must not be in use by a collective that is
  // under way, other than this step.
  Status Write(const Slot& slot, ValueId v) {
    if (slot.bytes == 0) return OkStatus();
    Space& space = SpaceOf(slot);
    auto it = space.upper_bound(slot.offset);
    if (it != space.begin() && std::prev(it)->second.end > slot.offset) --it;
    while (it != space.end() && it->first < slot.offset + slot.bytes) {
      const ValueId old = it->second.value;
      const Pending& pending = pending_[old];
      std::vector<int> users = pending.readers;
      if (pending.writer >= 0) users.push_back(pending.writer);
      for (const int user : users) {
        if (user == at_) continue;
        return Wrong(fmt::format("writes over %{}, which step {} may still use", old, user));
      }
      it = space.erase(it);
    }
    space[slot.offset] = {slot.offset + slot.bytes, v};
    return OkStatus();
  }

  Status Wait(int w) {
    if (w < 0 || w >= at_ || plan_.steps[w].kind != StepKind::kCollective) {
      return Wrong(fmt::format("waits for step {}, which is no collective before it", w));
    }
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
      MT_RETURN_IF_ERROR(CheckSlot(plan_.slots[v], local_.type(v).num_bytes()));
      if (plan_.slots[v].kind == SlotKind::kInput) return Wrong("writes to an input");
    }
    MT_RETURN_IF_ERROR(SharedPlaces(step));
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
    std::vector<ValueId> reads, made;
    int previous = -1;
    for (const int i : step.ops) {
      if (i <= previous || i >= static_cast<int>(local_.ops.size())) {
        return Wrong(fmt::format("op #{} stands out of order", i));
      }
      previous = i;
      if (++runs_[i] > 1) return Wrong(fmt::format("op #{} runs twice", i));
      const Op& op = local_.ops[i];
      for (const ValueId v : op.operands) {
        const bool inside = std::find(made.begin(), made.end(), v) != made.end();
        if (inside && step.kind != StepKind::kFused) {
          return Wrong(fmt::format("%{} is read by the step that makes it", v));
        }
        if (inside || (step.kind == StepKind::kFused && IsImmediate(v))) continue;
        reads.push_back(v);
      }
      made.insert(made.end(), op.results.begin(), op.results.end());
    }
    std::sort(reads.begin(), reads.end());
    reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
    std::vector<ValueId> listed = step.reads;
    std::sort(listed.begin(), listed.end());
    if (listed != reads) return Wrong("lists other reads than its ops have");
    std::vector<ValueId> stored;
    for (const ValueId v : made) {
      if (plan_.slots[v].kind != SlotKind::kNone) stored.push_back(v);
    }
    std::sort(stored.begin(), stored.end());
    std::vector<ValueId> writes = step.writes;
    std::sort(writes.begin(), writes.end());
    if (writes != stored) return Wrong("lists other writes than its ops have");
    return OkStatus();
  }

  // Within one step a written place may only be another's where the step can work in place: a chain
  // at the same index, an all-reduce on its own operand.
  Status SharedPlaces(const Step& step) {
    // By place, so that only neighbours need a look.
    struct Use {
      const Slot* slot;
      ValueId value;
      bool written;
    };
    std::vector<Use> uses;
    for (const ValueId v : step.reads) uses.push_back({&plan_.slots[v], v, false});
    for (const ValueId v : step.writes) uses.push_back({&plan_.slots[v], v, true});
    std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
      return std::tie(a.slot->kind, a.slot->index, a.slot->offset, a.written) <
             std::tie(b.slot->kind, b.slot->index, b.slot->offset, b.written);
    });
    for (size_t i = 0; i < uses.size(); ++i) {
      for (size_t j = i + 1; j < uses.size() && Meet(*uses[i].slot, *uses[j].slot); ++j) {
        if (!uses[i].written && !uses[j].written) continue;
        if (uses[i].written && uses[j].written) {
          return Wrong(fmt::format("writes %{} and %{} to places that overlap", uses[i].value,
                                   uses[j].value));
        }
        const Use& read = uses[i].written ? uses[j] : uses[i];
        const Use& write = uses[i].written ? uses[i] : uses[j];
        if (!InPlace(step, read.value, write.value)) {
          return Wrong(
              fmt::format("writes %{} over %{} while it reads that", write.value, read.value));
        }
      }
    }
    return OkStatus();
  }

  bool InPlace(const Step& step, ValueId read, ValueId written) const {
    if (plan_.slots[read].offset != plan_.slots[written].offset) return false;
    const auto& from = local_.type(read);
    const auto& to = local_.type(written);
    if (step.kind == StepKind::kFused) {
      return from.num_elements() == to.num_elements() && from.num_bytes() == to.num_bytes();
    }
    if (step.kind != StepKind::kCollective) return false;
    int readers = 0;
    bool own = false;
    for (const int i : step.ops) {
      const Op& op = local_.ops[i];
      readers += static_cast<int>(std::count(op.operands.begin(), op.operands.end(), read));
      own = own || (op.kind == "all_reduce" && op.operands[0] == read && op.results[0] == written);
    }
    return own && readers == 1;
  }

  Status Copy(const Step& step) {
    MT_RETURN_IF_ERROR(CheckSlot(step.copy_from, step.copy_to.bytes));
    MT_RETURN_IF_ERROR(CheckSlot(step.copy_to, step.copy_to.bytes));
    if (step.copy_to.kind == SlotKind::kInput) return Wrong("writes to an input");
    if (step.copy_to.bytes == 0) return OkStatus();
    const ValueId v = At(step.copy_from);
    if (v < 0) return Wrong("copies a place that holds nothing whole");
    if (pending_[v].writer >= 0) {
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
      if (place.bytes == 0 || At(place) == v) continue;
      return Wrong(fmt::format("the guard finds {}, not %{}", Name(At(place)), v));
    }
    return OkStatus();
  }

  Status OutputIsWritten(int i) {
    const ValueId v = local_.outputs[i].value;
    const Slot place{SlotKind::kOutput, i, 0, local_.type(v).num_bytes()};
    if (place.bytes == 0 || At(place) == v) return OkStatus();
    return Wrong(fmt::format("output {} (`{}`) holds {}, not %{}", i, local_.outputs[i].name,
                             Name(At(place)), v));
  }

  Status End() {
    for (size_t i = 0; i < runs_.size(); ++i) {
      const Op& op = local_.ops[i];
      if (runs_[i] == 1 || (op.results.size() == 1 && IsImmediate(op.results[0]))) continue;
      return Wrong(fmt::format("op #{} (`{}`) is in no step", i, op.kind));
    }
    for (size_t i = 0; i < local_.outputs.size(); ++i) {
      MT_RETURN_IF_ERROR(OutputIsWritten(static_cast<int>(i)));
    }
    for (size_t i = 0; i < local_.states.size(); ++i) {
      const program::State& state = local_.states[i];
      const Slot place{SlotKind::kState, static_cast<int>(i), 0,
                       local_.type(state.entry).num_bytes()};
      if (place.bytes == 0 || At(place) == state.exit) continue;
      return Wrong(fmt::format("state {} (`{}`) holds {}, not %{}", i, state.name, Name(At(place)),
                               state.exit));
    }
    return OkStatus();
  }

  const Plan& plan_;
  const Program& local_;
  const bool overlap_;
  int at_ = 0;             // the step
  std::vector<int> runs_;  // per op
  std::vector<Pending> pending_;
  std::map<SpaceKey, Space> spaces_;
};

}  // namespace

Status Verify(const Plan& plan, bool overlap) { return Player(plan, overlap).Play(); }

}  // namespace meshtrain::plan
