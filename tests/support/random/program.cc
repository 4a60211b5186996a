#include "tests/support/random/program.h"

#include <cstdlib>
#include <tuple>

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "tests/support/random/drawer.h"

namespace meshtrain::testing {

bool IsOfWholePrograms(const program::OpDef& def) {
  return !def.collective && def.kind != "shard_slice" && def.kind != "shard_window" &&
         def.kind != "mask_pad";
}

Result<program::Program> DrawProgram(uint64_t seed, const DrawOptions& options) {
  std::vector<const program::OpDef*> kinds;
  const program::OpDef* wanted = nullptr;
  for (const program::OpDef* def : program::Registry::Standard().All()) {
    if (!IsOfWholePrograms(*def)) continue;
    kinds.push_back(def);
    if (def->kind == options.kind) wanted = def;
  }
  if (!options.kind.empty() && wanted == nullptr) {
    return NotFound("expected an op of whole programs, got: `" + options.kind + "`");
  }
  random::Drawer drawer(seed, options);
  const program::Builder::Scope scope(drawer.builder());
  drawer.Fresh({drawer.FloatDType(), drawer.SomeDims()}, "x");
  const size_t count = 8 + drawer.Pick(26);
  const size_t at = drawer.Pick(count);
  for (size_t i = 0; i < count; ++i) {
    if (wanted != nullptr && i == at) {
      bool made = false;
      for (int attempt = 0; attempt < 10 && !made; ++attempt) made = drawer.TryOp(*wanted);
      if (!made) {
        return NotFound("no attempt gave a call of op `" + options.kind +
                        "` with a usable result: give it a row in tests/support/random/ops.cc");
      }
    }
    drawer.TryOp(drawer.NextKind(kinds));
    if (drawer.Chance(0.1)) drawer.TryReaders();
    if (drawer.Chance(0.12)) drawer.TryPendingWay();
    if (drawer.Chance(0.06)) drawer.TryComposed();
    if (drawer.Chance(0.05)) drawer.TryMeans();
    if (drawer.Chance(0.1)) drawer.AssignSome();
    if (drawer.Chance(0.04)) drawer.TryGradient();
  }
  if (drawer.Chance(0.4)) drawer.TryGradient();
  drawer.AssignSome();
  return drawer.Finish();
}

program::Program RandomProgram(uint64_t seed) {
  auto program = DrawProgram(seed, {.axes = {"batch", "model"}, .most_elements = 200});
  MT_CHECK(program.ok());
  return *std::move(program);
}

Array FeedFor(const std::string& name, const mesh::TensorType& type, uint64_t seed) {
  uint64_t hash = random::Mixed(seed);
  for (const char c : name) hash = random::Mixed(hash ^ static_cast<unsigned char>(c));
  std::mt19937_64 bits(hash);
  const bool wide = name.starts_with("wide"), positive = name.starts_with("positive");
  const bool labels = name.starts_with("labels"), negative = name.starts_with("negative");
  Array out(type);
  for (Number& v : out.at) {
    const uint64_t b = bits();
    if (type.dtype == mesh::DType::kBool) {
      v = static_cast<double>(b >> 63);
    } else if (labels) {
      v = static_cast<double>(b % 3);
    } else if (mesh::IsFloat(type.dtype)) {
      const double unit = static_cast<double>(b >> 11) * 0x1p-53;
      v = wide       ? (0.1 + 1.9 * unit) * ((b & 1) != 0 ? 1 : -1)
          : positive ? static_cast<double>(b % 128 + 1) / 64
          : negative ? -static_cast<double>(b % 128 + 1) / 64
                     : static_cast<double>(b % 257) / 64 - 2;
    } else if (wide) {
      v = static_cast<Number>(static_cast<int64_t>(b));
    } else {
      v = positive   ? static_cast<Number>(b % 8 + 1)
          : negative ? -static_cast<Number>(b % 8 + 1)
                     : static_cast<Number>(static_cast<int64_t>(b % 17) - 8);
    }
    v = RoundTo(type.dtype, v);
  }
  return out;
}

StepInput FeedFor(const program::Program& program, uint64_t seed) {
  StepInput feed;
  for (const program::Port& p : program.inputs) {
    feed.inputs[p.name] = FeedFor(p.name, program.type(p.value), seed);
  }
  for (const program::State& s : program.states) {
    feed.states[s.name] = FeedFor(s.name, program.type(s.entry), seed);
  }
  return feed;
}

uint64_t FirstSeed() {
  const char* text = std::getenv("MT_TEST_SEED");
  return text == nullptr ? 1 : static_cast<uint64_t>(ParseInt(text).value_or(1));
}

bool SameProgram(const program::Program& a, const program::Program& b) {
  const auto key = [](const program::Op& op) {
    return std::tie(op.kind, op.attrs, op.operands, op.results, op.path);
  };
  bool same = a.name == b.name && a.inputs == b.inputs && a.outputs == b.outputs &&
              a.values.size() == b.values.size() && a.ops.size() == b.ops.size() &&
              a.states.size() == b.states.size();
  for (size_t i = 0; same && i < a.values.size(); ++i) {
    same = a.values[i].type == b.values[i].type && a.values[i].op == b.values[i].op;
  }
  for (size_t i = 0; same && i < a.ops.size(); ++i) same = key(a.ops[i]) == key(b.ops[i]);
  for (size_t i = 0; same && i < a.states.size(); ++i) {
    same = a.states[i].name == b.states[i].name && a.states[i].entry == b.states[i].entry &&
           a.states[i].exit == b.states[i].exit;
  }
  return same;
}

}  // namespace meshtrain::testing
