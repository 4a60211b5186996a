// Programs in which something was changed at random: each is refused with an error or goes all the
// way to a plan that runs. None ends the process. MT_TEST_SEED replays one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "runtime/device/backend.h"
#include "runtime/plan/plan.h"
#include "runtime/program/registry.h"
#include "tests/contract/prover.h"
#include "tests/contract/run_plan.h"

namespace meshtrain::prover {
namespace {

using mesh::Layout;
using mesh::Mesh;
using program::Program;

// Every case of the prover as text, some with their gradient.
std::vector<std::string> Texts() {
  std::vector<std::string> texts;
  for (const Case& c : AllCases()) {
    for (const bool gradient : {false, true}) {
      program::Builder b("mutant");
      program::Builder::Scope scope(b);
      std::vector<program::Value> inputs, floats;
      const program::Value y = program::RecordCase(c, b, &inputs);
      for (const program::Value& input : inputs) {
        if (mesh::IsFloat(input.dtype())) floats.push_back(input);
      }
      b.Output("y", y);
      if (gradient) {
        if (floats.empty() || !mesh::IsFloat(y.dtype())) continue;
        int i = 0;
        for (const program::Value& g : b.Gradient(y, floats)) {
          if (g.valid()) b.Output("g" + std::to_string(i++), g);
        }
      }
      if (const auto program = b.Build(); program.ok()) texts.push_back(program->ToString());
    }
  }
  return texts;
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {
    for (const program::OpDef* def : program::Registry::Standard().All()) {
      kinds_.push_back(def->kind);
    }
  }

  size_t Pick(size_t n) { return random_() % n; }

  std::string Mutate(std::string text) {
    for (size_t i = 0, n = 1 + Pick(3); i < n; ++i) text = MutateOnce(text);
    return text;
  }

  // Changes the program itself: dimensions and types of inputs, attributes, operands, kinds of ops.
  // The types of results no longer follow (see Retype).
  void Mutate(Program& program) {
    for (size_t i = 0, n = 1 + Pick(3); i < n; ++i) MutateOnce(program);
  }

  Layout AnyLayout(const Mesh& mesh, int rank) {
    std::vector<mesh::DimSharding> dims(rank);
    std::vector<mesh::Partial> partial;
    const auto reduction = static_cast<mesh::Reduction>(Pick(3));
    const bool one_kind = Pick(8) != 0;
    for (int a = 0; a < mesh.num_axes(); ++a) {
      const size_t choice = Pick(static_cast<size_t>(rank) + 2);
      if (choice < static_cast<size_t>(rank)) dims[choice].push_back(a);
      if (choice == static_cast<size_t>(rank)) {
        partial.push_back({a, one_kind ? reduction : static_cast<mesh::Reduction>(Pick(3))});
      }
    }
    return *Layout::Create(mesh, std::move(dims), std::move(partial));
  }

 private:
  int64_t Integer() {
    static constexpr int64_t kIntegers[] = {
        -1,       0, 1, 2, 3, 5, 7, 33, 1000, int64_t{1} << 31, int64_t{1} << 50, int64_t{1} << 62,
        INT64_MAX};
    return Pick(3) == 0 ? kIntegers[Pick(std::size(kIntegers))] : static_cast<int64_t>(Pick(7));
  }

  void MutateOnce(Program& program) {
    const size_t choice = Pick(4);
    if (choice == 0 && !program.inputs.empty()) {
      auto& type = program.values[program.inputs[Pick(program.inputs.size())].value].type;
      if (Pick(3) == 0) type.dtype = mesh::kAllDTypes[Pick(std::size(mesh::kAllDTypes))];
      if (Pick(8) == 0) type.dims.assign(Pick(36), 1);
      if (!type.dims.empty()) type.dims[Pick(type.dims.size())] = Integer();
      return;
    }
    if (program.ops.empty()) return;
    const size_t index = Pick(program.ops.size());
    program::Op& op = program.ops[index];
    if (choice == 1) op.kind = kinds_[Pick(kinds_.size())];
    if (choice == 2 && !op.operands.empty()) {
      // Any value that comes before the op.
      std::vector<program::ValueId> before;
      for (size_t v = 0; v < program.values.size(); ++v) {
        if (program.values[v].op < static_cast<int>(index)) {
          before.push_back(static_cast<program::ValueId>(v));
        }
      }
      op.operands[Pick(op.operands.size())] = before[Pick(before.size())];
    }
    if (choice != 3 || op.attrs.items().empty()) return;
    const auto at = std::next(op.attrs.items().begin(),
                              static_cast<std::ptrdiff_t>(Pick(op.attrs.items().size())));
    program::Attr value = at->second;
    if (auto* number = std::get_if<int64_t>(&value)) *number = Integer();
    if (auto* number = std::get_if<double>(&value)) *number = static_cast<double>(Integer());
    if (auto* flag = std::get_if<bool>(&value)) *flag = !*flag;
    if (auto* text = std::get_if<std::string>(&value)) *text = Pick(2) == 0 ? DType() : "{*, a}";
    if (auto* list = std::get_if<std::vector<int64_t>>(&value)) {
      if (Pick(4) == 0) list->resize(Pick(5), 1);
      if (!list->empty()) (*list)[Pick(list->size())] = Integer();
    }
    const std::string name = at->first;
    op.attrs.Set(name, std::move(value));
  }

  std::string MutateOnce(const std::string& text) {
    switch (Pick(4)) {
      case 0:
        return Replace(text, R"(-?[0-9]+(\.[0-9]+)?)", Number());
      case 1:
        return Replace(text, R"([a-z_0-9]+\()", kinds_[Pick(kinds_.size())] + "(");
      case 2:
        return Replace(text, R"((f32|f64|i32|i64|u8|bool)\[)", DType() + "[");
      default:
        return Replace(text, R"(\[[0-9,]*\])", Dims());
    }
  }

  // One match of `pattern`, any of them, becomes `by`.
  std::string Replace(const std::string& text, const std::string& pattern, const std::string& by) {
    const std::regex regex(pattern);
    std::vector<std::smatch> matches;
    for (auto it = std::sregex_iterator(text.begin(), text.end(), regex);
         it != std::sregex_iterator(); ++it) {
      matches.push_back(*it);
    }
    if (matches.empty()) return text;
    const std::smatch& m = matches[Pick(matches.size())];
    std::string out = text;
    return out.replace(m.position(0), m.length(0), by);
  }

  std::string Number() {
    static const char* const kNumbers[] = {"-1",
                                           "0",
                                           "1",
                                           "2",
                                           "3",
                                           "5",
                                           "7",
                                           "33",
                                           "64",
                                           "1000",
                                           "2147483648",
                                           "1125899906842624",
                                           "4611686018427387904",
                                           "9223372036854775807",
                                           "0.5",
                                           "-3.0",
                                           "1e300"};
    return kNumbers[Pick(std::size(kNumbers))];
  }
  std::string DType() {
    static const char* const kDTypes[] = {"f32", "f64", "i32", "i64", "u8", "bool"};
    return kDTypes[Pick(std::size(kDTypes))];
  }
  std::string Dims() {
    std::string text = "[";
    for (size_t d = 0, rank = Pick(8) == 0 ? 30 + Pick(6) : Pick(4); d < rank; ++d) {
      text += (d > 0 ? "," : "") + (Pick(12) == 0 ? Number() : std::to_string(Pick(6)));
    }
    return text + "]";
  }

  std::mt19937_64 random_;
  std::vector<std::string> kinds_;
};

// A row is asked about types whose elements can be counted (program::Validate).
bool CanBeCounted(const program::TensorType& type) {
  double elements = 1;
  for (const int64_t d : type.dims) elements *= static_cast<double>(std::max<int64_t>(d, 1));
  return elements < 0x1p60;
}

// Gives every result the type that its op's row infers. False where one is refused.
bool Retype(Program& program) {
  for (const program::Op& op : program.ops) {
    const program::OpDef* def = program::Registry::Standard().Find(op.kind);
    const auto given = static_cast<int>(op.operands.size());
    if (given < def->min_operands || (def->max_operands >= 0 && given > def->max_operands)) {
      return false;
    }
    std::vector<program::TensorType> types;
    for (const auto v : op.operands) types.push_back(program.type(v));
    if (!std::all_of(types.begin(), types.end(), CanBeCounted)) return false;
    const auto results = def->infer({types, op.attrs});
    if (!results.ok() || results->size() != op.results.size()) return false;
    for (size_t r = 0; r < results->size(); ++r) {
      program.values[op.results[r]].type = (*results)[r];
    }
  }
  return program::Validate(program).ok();
}

// What was reached: parsed, sharded, run.
struct Reached {
  int parsed = 0, planned = 0, ran = 0;
};

void TryToRun(const Program& program, Mutator& mutator, Reached& reached) {
  static const char* const kMeshes[] = {"", "a=2", "a=3", "a=2,b=2", "a=2,b=3,c=1"};
  const char* const axes = kMeshes[mutator.Pick(std::size(kMeshes))];
  const Mesh mesh = *axes == '\0' ? Mesh() : *Mesh::Parse(axes);
  sharding::Given given;
  for (const auto& port : program.inputs) {
    if (mutator.Pick(2) == 0) continue;
    given.inputs.insert_or_assign(port.name,
                                  mutator.AnyLayout(mesh, program.type(port.value).rank()));
  }
  for (const auto& port : program.outputs) {
    if (mutator.Pick(3) != 0) continue;
    given.outputs.insert_or_assign(port.name,
                                   mutator.AnyLayout(mesh, program.type(port.value).rank()));
  }
  auto partitioned = sharding::Shard(program, mesh, given);
  if (!partitioned.ok()) {
    EXPECT_NE(partitioned.status().code(), StatusCode::kInternal)
        << partitioned.status().ToString();
    return;
  }
  const auto plan = plan::MakePlan(*std::move(partitioned));
  if (!plan.ok()) {
    EXPECT_NE(plan.status().code(), StatusCode::kInternal) << plan.status().ToString();
    return;
  }
  ++reached.planned;
  // The interpreter cuts inputs, and knows pending reductions of one kind only.
  const auto is_mixed = [](const Layout& layout) {
    const auto& partial = layout.partial();
    return std::any_of(partial.begin(), partial.end(),
                       [&](const mesh::Partial& p) { return p.reduction != partial[0].reduction; });
  };
  const sharding::Partitioned& p = plan->partitioned;
  if (plan->peak_bytes > (1 << 20) ||
      std::any_of(p.input_layouts.begin(), p.input_layouts.end(), is_mixed) ||
      std::any_of(p.output_layouts.begin(), p.output_layouts.end(), is_mixed)) {
    return;
  }
  static const std::unique_ptr<device::Backend> cpu =
      device::MakeCpuBackend({.threads = 1, .fenced = true});
  testing::StepInput input;
  const auto ones = [](const program::TensorType& type) {
    return testing::Array(type, std::vector<testing::Number>(type.num_elements(), 1));
  };
  for (const auto& port : program.inputs) {
    input.inputs[port.name] = ones(program.type(port.value));
  }
  for (const auto& state : program.states) {
    input.states[state.name] = ones(program.type(state.entry));
  }
  const auto out = device::RunPlan(*cpu, *plan, input);
  if (out.ok()) ++reached.ran;
}

TEST(MutatedProgramsTest, AreRefusedOrRunAndNeverEndTheProcess) {
  const char* given = std::getenv("MT_TEST_SEED");
  const uint64_t base = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  const uint64_t count = given != nullptr ? 1 : 20000;
  const std::vector<std::string> texts = Texts();
  ASSERT_GT(texts.size(), 100u);
  Reached reached;
  for (uint64_t seed = base; seed < base + count; ++seed) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
    Mutator mutator(seed);
    const std::string& text = texts[mutator.Pick(texts.size())];
    if (seed % 4 == 0) {
      auto program = program::ParseProgram(mutator.Mutate(text));
      if (!program.ok()) continue;
      ++reached.parsed;
      TryToRun(*program, mutator, reached);
    } else {
      Program program = *program::ParseProgram(text);
      mutator.Mutate(program);
      if (!Retype(program)) continue;
      ++reached.parsed;
      TryToRun(program, mutator, reached);
    }
    ASSERT_FALSE(HasFailure());
  }
  RecordProperty("parsed", reached.parsed);
  RecordProperty("planned", reached.planned);
  RecordProperty("ran", reached.ran);
  if (given == nullptr) {
    EXPECT_GT(reached.ran, 1000) << "of " << reached.parsed << " parsed, " << reached.planned
                                 << " planned";
  }
}

}  // namespace
}  // namespace meshtrain::prover
