#include "tests/contract/random_programs/reducer.h"

#include <algorithm>
#include <optional>

namespace meshtrain::random_programs {
namespace {

using program::Op;
using program::Program;
using program::ValueId;

// Numbers are given anew, as the text form wants them: inputs and states first, then results in
// the order of the ops. A value that is none of these goes.
void Renumber(Program& p) {
  std::vector<ValueId> order;
  for (const auto& i : p.inputs) order.push_back(i.value);
  for (const auto& s : p.states) order.push_back(s.entry);
  for (const Op& op : p.ops) order.insert(order.end(), op.results.begin(), op.results.end());
  std::vector<ValueId> to(p.values.size(), program::kNoValue);
  std::vector<program::ValueInfo> values;
  for (const ValueId v : order) {
    to[v] = static_cast<ValueId>(values.size());
    values.push_back(p.values[v]);
  }
  p.values = values;
  for (Op& op : p.ops) {
    for (ValueId& v : op.operands) v = to[v];
    for (ValueId& v : op.results) v = to[v];
  }
  for (auto& i : p.inputs) i.value = to[i.value];
  for (auto& o : p.outputs) o.value = to[o.value];
  for (auto& s : p.states) {
    s.entry = to[s.entry];
    s.exit = to[s.exit];
  }
}

// What nothing uses goes: dead ops, inputs and states that nobody reads, layouts of what is gone.
void Tidy(Case& c) {
  c.program = program::WithoutDeadOps(c.program);
  Program& p = c.program;
  std::vector<char> used(p.values.size(), 0);
  for (const Op& op : p.ops) {
    for (const ValueId v : op.operands) used[v] = 1;
  }
  for (const program::Port& port : p.outputs) used[port.value] = 1;
  for (const program::State& s : p.states) {
    if (s.exit != s.entry) used[s.exit] = 1;
  }
  // States are read and written; an input or a state that only stands there is dropped.
  std::vector<program::Port> inputs;
  for (const program::Port& port : p.inputs) {
    if (used[port.value] != 0) inputs.push_back(port);
  }
  std::vector<program::State> states;
  for (const program::State& s : p.states) {
    if (used[s.entry] != 0 || s.exit != s.entry) states.push_back(s);
  }
  p.inputs = inputs;
  p.states = states;
  Renumber(p);
  const auto known = [&](const std::string& name) {
    return std::any_of(p.inputs.begin(), p.inputs.end(),
                       [&](const auto& i) { return i.name == name; });
  };
  std::erase_if(c.given.inputs, [&](const auto& g) { return !known(g.first); });
  std::erase_if(c.given.states, [&](const auto& g) {
    return std::none_of(p.states.begin(), p.states.end(),
                        [&](const auto& s) { return s.name == g.first; });
  });
  std::erase_if(c.given.outputs, [&](const auto& g) {
    return std::none_of(p.outputs.begin(), p.outputs.end(),
                        [&](const auto& o) { return o.name == g.first; });
  });
}

// Every use of `v` becomes one of `by`.
void Replace(Program& p, ValueId v, ValueId by) {
  for (Op& op : p.ops) std::replace(op.operands.begin(), op.operands.end(), v, by);
  for (auto& port : p.outputs) port.value = port.value == v ? by : port.value;
  for (auto& s : p.states) s.exit = s.exit == v ? by : s.exit;
}

class Reducer {
 public:
  Reducer(Case c, const Fails& fails, int tries)
      : best_(std::move(c)), fails_(fails), left_(tries) {}

  Case Run() {
    OneWay();
    bool smaller = true;
    while (smaller && left_ > 0) {
      smaller = false;
      smaller |= Outputs();
      smaller |= States();
      smaller |= Ops();
      smaller |= Layouts();
      smaller |= Axes();
      if (best_.steps > 1) {
        smaller |= Try([](Case& c) { c.steps = 1; });
      }
    }
    return std::move(best_);
  }

 private:
  template <typename Change>
  bool Try(const Change& change) {
    if (left_ <= 0) return false;
    Case next = best_;
    change(next);
    Tidy(next);
    if (!program::Validate(next.program).ok()) return false;
    --left_;
    if (!fails_(next)) return false;
    best_ = std::move(next);
    return true;
  }

  void OneWay() {
    for (const Way& way : best_.ways) {
      if (Try([&](Case& c) { c.ways = {way}; })) return;
    }
  }

  bool Outputs() {
    bool smaller = false;
    for (size_t i = 0; i < best_.program.outputs.size();) {
      const bool gone = Try([&](Case& c) {
        c.program.outputs.erase(c.program.outputs.begin() + static_cast<int64_t>(i));
      });
      smaller |= gone;
      i += gone ? 0 : 1;
    }
    return smaller;
  }

  bool States() {
    bool smaller = false;
    for (size_t i = 0; i < best_.program.states.size();) {
      const size_t before = best_.program.states.size();
      const auto& s = best_.program.states[i];
      bool gone = s.exit != s.entry &&
                  Try([&](Case& c) { c.program.states[i].exit = c.program.states[i].entry; });
      // A state that is only read is an input.
      if (!gone && best_.program.states[i].exit == best_.program.states[i].entry) {
        gone = Try([&](Case& c) {
          c.program.inputs.push_back({c.program.states[i].name, c.program.states[i].entry});
          c.program.states.erase(c.program.states.begin() + static_cast<int64_t>(i));
        });
      }
      smaller |= gone;
      if (!gone || best_.program.states.size() == before) ++i;
    }
    return smaller;
  }

  // From the last: an op's result becomes an input, or an operand of the same type.
  bool Ops() {
    bool smaller = false;
    for (size_t k = best_.program.ops.size(); k-- > 0;) {
      if (k >= best_.program.ops.size()) continue;
      const Op op = best_.program.ops[k];
      const ValueId result = op.results[0];
      bool gone = false;
      for (const ValueId v : op.operands) {
        if (gone || best_.program.type(v) != best_.program.type(result)) continue;
        gone = Try([&](Case& c) { Replace(c.program, result, v); });
      }
      if (!gone && !op.operands.empty()) {
        for (const char* numbers : {"x", "positive", "negative", "n", "labels"}) {
          gone = Try([&](Case& c) {
            const auto input = static_cast<ValueId>(c.program.values.size());
            c.program.values.push_back({c.program.type(result), -1});
            c.program.inputs.push_back(
                {numbers + std::string(" cut ") + std::to_string(cuts_++), input});
            Replace(c.program, result, input);
            Renumber(c.program);
          });
          if (gone) break;
        }
      }
      smaller |= gone;
    }
    return smaller;
  }

  bool Layouts() {
    bool smaller = false;
    for (auto of :
         {&sharding::Given::inputs, &sharding::Given::states, &sharding::Given::outputs}) {
      std::vector<std::string> names;
      for (const auto& [name, layout] : best_.given.*of) names.push_back(name);
      for (const std::string& name : names) {
        smaller |= Try([&](Case& c) { (c.given.*of).erase(name); });
      }
    }
    return smaller;
  }

  // An axis of one device splits nothing.
  bool Axes() {
    bool smaller = false;
    for (int a = 0; a < best_.mesh.num_axes(); ++a) {
      for (int64_t size = 1; size < best_.mesh.axis(a).size; ++size) {
        if (!Try([&](Case& c) { Resize(c, a, size); })) continue;
        smaller = true;
        break;
      }
    }
    return smaller;
  }

  static void Resize(Case& c, int axis, int64_t size) {
    std::vector<mesh::Axis> axes = c.mesh.axes();
    axes[axis].size = size;
    c.mesh = *mesh::Mesh::Create(axes);
    for (auto of :
         {&sharding::Given::inputs, &sharding::Given::states, &sharding::Given::outputs}) {
      for (auto& [name, layout] : c.given.*of) {
        layout = *mesh::Layout::Parse(layout.ToString(), c.mesh);
      }
    }
  }

  Case best_;
  const Fails& fails_;
  int left_;
  int cuts_ = 0;
};

}  // namespace

Case Reduce(Case c, const Fails& fails, int most_tries) {
  return Reducer(std::move(c), fails, most_tries).Run();
}

}  // namespace meshtrain::random_programs
