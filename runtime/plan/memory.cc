#include <algorithm>
#include <map>
#include <set>

#include "runtime/base/check.h"
#include "runtime/plan/internal.h"

namespace meshtrain::plan {
namespace {

using program::Program;

constexpr int64_t kAlignment = 64;
int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// When a value lives, in step numbers, both ends included.
struct Life {
  ValueId value;
  int first;
  int last;
  int64_t bytes;
};

// Places the largest first, each at the lowest offset that is free for its whole life. Returns the
// arena's size.
int64_t Pack(std::vector<Life> lives, std::vector<Slot>* slots) {
  std::stable_sort(lives.begin(), lives.end(),
                   [](const Life& a, const Life& b) { return a.bytes > b.bytes; });
  std::vector<const Life*> placed;  // ascending offset
  int64_t arena = 0;
  for (const Life& life : lives) {
    int64_t offset = 0;
    for (const Life* other : placed) {
      if (other->last < life.first || life.last < other->first) continue;
      const int64_t other_offset = (*slots)[other->value].offset;
      if (offset + life.bytes <= other_offset) break;
      offset = std::max(offset, other_offset + other->bytes);
    }
    (*slots)[life.value] = {SlotKind::kArena, 0, offset, life.bytes};
    arena = std::max(arena, offset + life.bytes);
    const auto at = std::upper_bound(
        placed.begin(), placed.end(), offset,
        [&](int64_t o, const Life* other) { return o < (*slots)[other->value].offset; });
    placed.insert(at, &life);
  }
  return arena;
}

// Where each collective step must be complete: before the first step that touches what it writes.
std::vector<int> Deadlines(const Plan& plan) {
  const auto end = static_cast<int>(plan.steps.size());
  std::vector<int> deadlines(plan.steps.size(), end);
  std::vector<int> writer(plan.local().values.size(), -1);
  for (int s = 0; s < end; ++s) {
    const Step& step = plan.steps[s];
    for (const ValueId v : step.reads) {
      if (writer[v] >= 0) deadlines[writer[v]] = std::min(deadlines[writer[v]], s);
    }
    if (step.kind != StepKind::kCollective) continue;
    for (const ValueId v : step.writes) writer[v] = s;
  }
  return deadlines;
}

}  // namespace

void PlaceBuffers(Plan* plan, bool overlap) {
  const Program& local = plan->local();
  std::vector<Slot>& slots = plan->slots;
  slots.assign(local.values.size(), Slot{});
  const auto end = static_cast<int>(plan->steps.size());  // the time of the closing copies

  std::vector<int> born(local.values.size(), -1);
  std::vector<int> dies(local.values.size(), -1);
  std::vector<bool> stored(local.values.size(), false);
  std::vector<int> last_step(local.values.size(), -1);    // that reads it
  std::vector<int> last_readers(local.values.size(), 0);  // ops of that step
  for (int s = 0; s < end; ++s) {
    for (const ValueId v : plan->steps[s].reads) dies[v] = s;
    for (const int i : plan->steps[s].ops) {
      for (const ValueId v : local.ops[i].operands) {
        if (last_step[v] != s) last_readers[v] = 0;
        last_step[v] = s;
        ++last_readers[v];
      }
    }
    for (const ValueId v : plan->steps[s].writes) {
      born[v] = s;
      dies[v] = std::max(dies[v], s);
      stored[v] = true;
    }
  }
  std::vector<int> overlapped(local.values.size(),
                              -1);  // last step during which a collective reads it
  if (overlap) {
    const std::vector<int> deadlines = Deadlines(*plan);
    for (int s = 0; s < end; ++s) {
      if (plan->steps[s].kind != StepKind::kCollective) continue;
      // What it reads and writes stays where it is until it is complete.
      for (const ValueId v : plan->steps[s].reads) {
        dies[v] = std::max(dies[v], deadlines[s] - 1);
        overlapped[v] = std::max(overlapped[v], deadlines[s] - 1);
      }
      for (const ValueId v : plan->steps[s].writes) dies[v] = std::max(dies[v], deadlines[s] - 1);
      if (deadlines[s] < end) plan->steps[deadlines[s]].waits.push_back(s);
    }
  }
  const auto bytes_of = [&](ValueId v) { return local.type(v).num_bytes(); };
  for (size_t i = 0; i < local.inputs.size(); ++i) {
    slots[local.inputs[i].value] = {SlotKind::kInput, static_cast<int>(i), 0,
                                    bytes_of(local.inputs[i].value)};
  }
  for (size_t i = 0; i < local.states.size(); ++i) {
    slots[local.states[i].entry] = {SlotKind::kState, static_cast<int>(i), 0,
                                    bytes_of(local.states[i].entry)};
  }

  // An entry value that ends as an output or as another state is read at the very end.
  std::vector<int> last_read = dies;
  for (const program::Port& p : local.outputs) last_read[p.value] = end;
  for (const program::State& s : local.states) {
    if (s.exit != s.entry) last_read[s.exit] = end;
  }

  struct Copy {
    ValueId from;
    Slot to;
  };
  int guarded = -1;  // the step by which the guard values are made
  for (const ValueId v : plan->GuardValues()) guarded = std::max(guarded, born[v]);
  std::vector<Copy> copies;
  for (size_t i = 0; i < local.states.size(); ++i) {
    const program::State& state = local.states[i];
    if (state.exit == state.entry) continue;
    const Slot place{SlotKind::kState, static_cast<int>(i), 0, bytes_of(state.exit)};
    bool in_place = stored[state.exit] && slots[state.exit].kind == SlotKind::kNone;
    if (in_place) {
      const int writer = born[state.exit];
      const Step& step = plan->steps[writer];
      in_place = writer > guarded && overlapped[state.entry] < writer &&
                 (last_read[state.entry] < writer ||
                  (last_read[state.entry] == writer &&
                   AtTheSameIndex(local, step, state.entry, state.exit)));
    }
    if (in_place) {
      slots[state.exit] = place;
    } else {
      copies.push_back({state.exit, place});
    }
  }
  for (size_t i = 0; i < local.outputs.size(); ++i) {
    const ValueId v = local.outputs[i].value;
    const Slot place{SlotKind::kOutput, static_cast<int>(i), 0, bytes_of(v)};
    if (stored[v] && slots[v].kind == SlotKind::kNone) {
      slots[v] = place;
    } else {
      copies.push_back({v, place});
    }
  }

  // An all-reduce, or a reshape, whose operand nobody reads beside or after it leaves its result in
  // the operand's place.
  std::vector<ValueId> in_place_of(local.values.size(), -1);
  const auto free = [&](ValueId v) { return stored[v] && slots[v].kind == SlotKind::kNone; };
  std::vector<bool> given(local.values.size(), false);  // its place, to another
  const auto leave = [&](ValueId to, ValueId from) {
    in_place_of[to] = from;
    given[from] = true;
    ValueId first = from;  // whose place it is
    while (in_place_of[first] >= 0) first = in_place_of[first];
    dies[first] = std::max({dies[first], dies[to], last_read[to]});
  };
  for (int s = 0; s < end; ++s) {
    if (plan->steps[s].kind == StepKind::kCopy) continue;
    for (const int i : plan->steps[s].ops) {
      const program::Op& op = local.ops[i];
      if (op.kind != "all_reduce" && op.kind != "reshape") continue;
      const ValueId from = op.operands[0], to = op.results[0];
      if (last_step[from] != s || last_readers[from] != 1 || !free(from) || !free(to) ||
          last_read[from] == end || (op.kind == "reshape" && overlapped[from] >= s)) {
        continue;
      }
      leave(to, from);
    }
  }
  // So does a chain, at the place of an operand of as many elements that nobody reads behind it: it
  // writes what is near the processor already.
  for (int s = 0; s < end; ++s) {
    const Step& step = plan->steps[s];
    if (step.kind != StepKind::kFused) continue;
    for (const ValueId to : step.writes) {
      if (!free(to) || in_place_of[to] >= 0) continue;
      const auto from = std::find_if(step.reads.begin(), step.reads.end(), [&](ValueId v) {
        return free(v) && !given[v] && std::max(dies[v], last_read[v]) == s && overlapped[v] < s &&
               AtTheSameIndex(local, step, v, to);
      });
      if (from != step.reads.end()) leave(to, *from);
    }
  }
  std::vector<Life> lives;
  for (size_t v = 0; v < local.values.size(); ++v) {
    if (!stored[v] || slots[v].kind != SlotKind::kNone || in_place_of[v] >= 0) continue;
    lives.push_back({static_cast<ValueId>(v), born[v], std::max(dies[v], last_read[v]),
                     Aligned(bytes_of(static_cast<ValueId>(v)))});
  }
  plan->arena_bytes = Pack(std::move(lives), &slots);
  for (int s = 0; s < end;
       ++s) {  // in order: an operand may itself be where another's result was left
    for (const ValueId v : plan->steps[s].writes) {
      if (in_place_of[v] >= 0) slots[v] = slots[in_place_of[v]];
    }
  }

  // Outputs are copied before states change; a state that takes another state's old value goes
  // through the arena, because that one may be overwritten first.
  std::stable_sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) {
    return (a.to.kind == SlotKind::kOutput) > (b.to.kind == SlotKind::kOutput);
  });
  std::vector<int> open;  // collectives that no step waits for: complete before the copies
  if (overlap && !copies.empty()) {
    std::set<int> waited;
    for (const Step& step : plan->steps) waited.insert(step.waits.begin(), step.waits.end());
    for (int s = 0; s < end; ++s) {
      if (plan->steps[s].kind == StepKind::kCollective && !waited.contains(s)) open.push_back(s);
    }
  }
  std::vector<Step> stage, to_states;
  for (const Copy& copy : copies) {
    Step step;
    step.kind = StepKind::kCopy;
    step.copy_from = slots[copy.from];
    step.copy_to = copy.to;
    if (copy.to.kind == SlotKind::kOutput) {
      plan->steps.push_back(step);
    } else if (step.copy_from.kind == SlotKind::kState) {
      Step first = step;
      first.copy_to = {SlotKind::kArena, 0, plan->arena_bytes, copy.to.bytes};
      plan->arena_bytes += Aligned(copy.to.bytes);
      step.copy_from = first.copy_to;
      stage.push_back(std::move(first));
      to_states.push_back(std::move(step));
    } else {
      to_states.push_back(std::move(step));
    }
  }
  plan->steps.insert(plan->steps.end(), stage.begin(), stage.end());
  plan->steps.insert(plan->steps.end(), to_states.begin(), to_states.end());
  if (!open.empty()) {
    plan->steps[end].waits.insert(plan->steps[end].waits.end(), open.begin(), open.end());
  }

  for (const program::Port& p : local.inputs) plan->input_bytes += bytes_of(p.value);
  for (const program::State& s : local.states) plan->state_bytes += bytes_of(s.entry);
  for (const program::Port& p : local.outputs) plan->output_bytes += bytes_of(p.value);
  plan->peak_bytes = plan->arena_bytes + plan->input_bytes + plan->state_bytes + plan->output_bytes;
}

}  // namespace meshtrain::plan
