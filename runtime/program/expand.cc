// A program again, with some of its ops replaced by what their rows expand them to.
#include "runtime/base/check.h"
#include "runtime/program/builder.h"
#include "runtime/program/registry.h"

namespace meshtrain::program {

Result<Program> Builder::Expanded(const Program& program, const std::vector<bool>& chosen) {
  MT_CHECK(chosen.size() == program.ops.size());
  Builder b(program.name);
  const Scope scope(b);
  std::vector<ValueId> now(program.values.size(), kNoValue);
  for (const Port& p : program.inputs) {
    now[p.value] = b.NewValue(program.type(p.value), -1);
    b.program_.inputs.push_back({p.name, now[p.value]});
  }
  for (const State& s : program.states) now[s.entry] = b.NewValue(program.type(s.entry), -1);

  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (!chosen[i]) {
      Op copy = op;
      const auto index = static_cast<int32_t>(b.program_.ops.size());
      for (ValueId& v : copy.operands) v = now[v];
      for (ValueId& v : copy.results) {
        now[v] = b.NewValue(program.type(v), index);
        v = now[v];
      }
      b.program_.ops.push_back(std::move(copy));
      continue;
    }
    const OpDef* def = Registry::Standard().Find(op.kind);
    MT_CHECK(def != nullptr && def->expand != nullptr);
    std::vector<Value> operands;
    for (const ValueId v : op.operands) operands.emplace_back(&b, now[v]);
    b.path_ = op.path;
    b.forward_line_ = &op.where;
    const std::vector<Value> made = def->expand(b, op, operands);
    if (!b.status_.ok()) return b.status_;
    MT_CHECK(made.size() == op.results.size());
    for (size_t r = 0; r < made.size(); ++r) {
      if (made[r].type() != program.type(op.results[r])) {
        return Internal("expansion of " + op.kind + ": expected " +
                        program.type(op.results[r]).ToString() +
                        ", got: " + made[r].type().ToString());
      }
      now[op.results[r]] = made[r].id();
    }
  }

  for (const State& s : program.states) {
    b.program_.states.push_back({s.name, now[s.entry], now[s.exit]});
  }
  for (const Port& p : program.outputs) b.program_.outputs.push_back({p.name, now[p.value]});
  for (const Port& p : program.watched) b.program_.watched.push_back({p.name, now[p.value]});
  return std::move(b.program_);
}

}  // namespace meshtrain::program
