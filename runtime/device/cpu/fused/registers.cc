#include "runtime/device/cpu/fused/registers.h"

#include <algorithm>
#include <cstddef>

namespace meshtrain::device::cpu::fused {
namespace {

constexpr size_t kMostSteps = 48;

}  // namespace

bool OfOneElement(const RunValue& value) {
  return value.kind == RunValue::kElement || value.kind == RunValue::kInverse ||
         value.kind == RunValue::kFactor;
}

std::optional<Assignment> Assign(const Run& run, bool wide) {
  Assignment made;
  made.vector.assign(run.values.size(), -1);
  std::vector<size_t> last(run.values.size(), 0);  // by value: the step that uses it last
  const auto add_pointer = [&](int base) {
    if (base >= 0 && std::ranges::find(made.pointers, base) == made.pointers.end()) {
      made.pointers.push_back(base);
    }
  };
  for (size_t s = 0; s < run.steps.size(); ++s) {
    for (const int v : run.steps[s].in) {
      if (v < 0) continue;
      last[v] = s;
      if (run.values[v].kind == RunValue::kMemory) add_pointer(run.values[v].base);
    }
    add_pointer(run.steps[s].store);
  }
  if (made.pointers.size() > kPointers || run.steps.size() > kMostSteps) return std::nullopt;

  std::vector<bool> taken(VectorRegisters(wide));
  bool enough = true;
  const auto take = [&](int v) {
    const auto at = std::ranges::find(taken, false);
    enough = enough && at != taken.end();
    if (!enough) return;
    *at = true;
    made.vector[v] = static_cast<int>(at - taken.begin());
  };
  for (size_t v = 0; v < run.values.size(); ++v) {
    if (OfOneElement(run.values[v])) take(static_cast<int>(v));
  }
  for (size_t s = 0; s < run.steps.size() && enough; ++s) {
    const RunStep& step = run.steps[s];
    for (const int v : step.in) {
      if (v >= 0 && run.values[v].kind == RunValue::kMemory && made.vector[v] < 0) take(v);
    }
    // Never one of its own operands': code may write it before it has read all of them.
    if (step.made >= 0) {
      last[step.made] = std::max(last[step.made], s);
      take(step.made);
    }
    for (size_t v = 0; v < run.values.size(); ++v) {
      const RunValue::Kind kind = run.values[v].kind;
      const bool held = kind == RunValue::kMemory || kind == RunValue::kMade;
      if (held && made.vector[v] >= 0 && last[v] == s) taken[made.vector[v]] = false;
    }
  }
  if (!enough) return std::nullopt;
  return made;
}

}  // namespace meshtrain::device::cpu::fused
