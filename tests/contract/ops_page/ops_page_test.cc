// docs/ops.md: every operation, made of the registry, of the table of op cases that the contract
// suites run, of what the backends compile, and of the rows of StableHLO. MT_WRITE_REFERENCE=1
// writes it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "runtime/base/file.h"
#include "runtime/device/devices.h"
#include "runtime/device/pjrt/ops/rows.h"
#include "runtime/program/ops.h"
#include "runtime/program/registry.h"
#include "tests/contract/backend_programs.h"
#include "tests/support/op_cases/cases.h"
#include "tests/support/random/program.h"

namespace meshtrain::device {
namespace {

using program::OpCase;
using program::OpDef;
using sharding::Given;

std::string Joined(const std::set<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "-" : text;
}

std::string Joined(const std::set<mesh::DType>& types) {
  std::string text;
  for (const mesh::DType type : types) {
    text += (text.empty() ? "" : ", ") + std::string(mesh::DTypeName(type));
  }
  return text;
}

const char* FactorName(program::FactorKind kind) {
  switch (kind) {
    case program::FactorKind::kMap:
      return "map";
    case program::FactorKind::kSum:
      return "sum";
    case program::FactorKind::kMax:
      return "max";
    case program::FactorKind::kMin:
      return "min";
    case program::FactorKind::kWhole:
      return "whole";
  }
  return "";
}

struct Known {
  std::set<std::string> factors;
  // Of each operand, and of the results.
  std::vector<std::set<mesh::DType>> operands;
  std::set<mesh::DType> results;
  std::map<std::string, bool> runs;  // by backend
};

// Compiles what the suites run, and notes for each op whether a backend took it.
class Notes {
 public:
  Notes() {
    for (const char* kind : {"cpu", "discrete"}) {
      backends_[kind] = *MakeBackend({.kind = kind, .threads = 1});
    }
  }

  // Types are those of the program; a backend compiles what it makes of it (of 16 bits, casts and
  // f32).
  void Add(const program::Program& program, const std::string& mesh, const Given& given) {
    const plan::Plan plan = PlanOf(program, mesh, given, {.fuse = false});
    NoteTypes(plan);
    for (const auto& [kind, backend] : backends_) {
      NoteRuns(plan, kind, Compiles(*backend, LoweredBy(*backend, program, mesh, given)));
    }
  }
  void Add(const plan::Plan& plan) {
    NoteTypes(plan);
    for (const auto& [kind, backend] : backends_) NoteRuns(plan, kind, Compiles(*backend, plan));
  }

  std::map<std::string, Known>& known() { return known_; }
  std::vector<std::string> backends() const {
    std::vector<std::string> names;
    for (const auto& [kind, backend] : backends_) names.push_back(kind);
    return names;
  }

 private:
  static bool Compiles(Backend& backend, const plan::Plan& plan) {
    std::vector<int64_t> ranks;
    for (int64_t r = 0; r < plan.partitioned.mesh.size(); ++r) ranks.push_back(r);
    return backend.Compile(plan, ranks, nullptr).ok();
  }
  void NoteRuns(const plan::Plan& plan, const std::string& kind, bool ok) {
    for (const program::Op& op : plan.local().ops) {
      const auto [it, first] = known_[op.kind].runs.try_emplace(kind, ok);
      if (!first) it->second = it->second && ok;
    }
  }
  void NoteTypes(const plan::Plan& plan) {
    for (const program::Op& op : plan.local().ops) {
      const auto type = [&](program::ValueId v) { return plan.local().type(v).dtype; };
      Known& known = known_[op.kind];
      known.operands.resize(std::max(known.operands.size(), op.operands.size()));
      for (size_t i = 0; i < op.operands.size(); ++i) {
        known.operands[i].insert(type(op.operands[i]));
      }
      for (const program::ValueId v : op.results) known.results.insert(type(v));
    }
  }

  std::map<std::string, std::unique_ptr<Backend>> backends_;
  std::map<std::string, Known> known_;
};

// From layout to layout by every collective, a sum of shards that are uneven, and windows over
// images split in space.
void AddMoves(Notes& notes) {
  const mesh::Mesh mesh = *mesh::Mesh::Parse("a=2,b=2");
  for (const mesh::DType dtype : mesh::kAllDTypes) {
    for (const char* from : {"{a, *}", "{*, b}", "{*, *}", "{*, *} sum(a)"}) {
      const mesh::Layout layout = *mesh::Layout::Parse(from, mesh);
      if (layout.IsPartial() && dtype == mesh::DType::kBool) continue;
      for (const char* to : {"{*, a}", "{b, *}", "{*, *}", "{a, *}"}) {
        Given given;
        given.inputs.insert_or_assign("x", layout);
        given.outputs.insert_or_assign("y", *mesh::Layout::Parse(to, mesh));
        notes.Add(Moved({dtype, {5, 6}}), "a=2,b=2", given);
      }
    }
  }
  const program::Program windows = WindowsInSpace();
  for (const char* axes : kSpaceMeshes) notes.Add(PlanInSpace(windows, axes, {.fuse = false}));
}

// "f32, f64; i32, i64 -> f32": of the operands, those alike said once, and of the results where
// they are not an operand's.
std::string TypesOf(const Known& known) {
  if (known.results.empty()) return "-";
  std::string text;
  for (size_t i = 0; i < known.operands.size(); ++i) {
    if (i > 0 && known.operands[i] == known.operands[i - 1]) continue;
    text += (i > 0 ? "; " : "") + Joined(known.operands[i]);
  }
  const auto& operands = known.operands;
  if (std::find(operands.begin(), operands.end(), known.results) != operands.end()) return text;
  return text + (text.empty() ? "-> " : " -> ") + Joined(known.results);
}

// The formulas, and the types of operands that rows take.
std::string ElementwiseTable() {
  std::string table =
      "\n## Element-wise\n\n"
      "Operands are broadcast as NumPy does. How far results may be off, and in which type they "
      "are "
      "computed, [numbers](numerics.md) says.\n\n"
      "| operation | each element | of |\n|---|---|---|\n";
  using mesh::DType;
  for (const OpDef* def : program::Registry::Standard().All()) {
    if (def->formula.empty()) continue;
    std::string types;
    for (const DType dtype : mesh::kAllDTypes) {
      std::vector<program::TensorType> operands(def->min_operands, {dtype, {2}});
      if (def->kind == "select") operands[0].dtype = DType::kBool;
      program::Attrs attrs;
      if (def->kind == "cast") attrs.Set("dtype", std::string("f32"));
      if (!def->infer({operands, attrs}).ok()) continue;
      types += (types.empty() ? "" : ", ") + std::string(mesh::DTypeName(dtype));
    }
    table += "| `" + def->kind + "` | " + def->formula + " | " + types + " |\n";
  }
  return table;
}

constexpr const char* kMadeOfThem =
    "\n## Made of them\n\n"
    "Functions of `runtime/program/ops.h` that record others. They are as exact as those, have "
    "their "
    "gradients, run as one loop where they are element-wise, and stay split as they do.\n\n"
    "| function | made of |\n|---|---|\n"
    "| `Silu` `Elu` `LeakyRelu` `SquaredDifference` `Ceil` `IsFinite` `IsNan` `ClipByValue` | "
    "element-wise ops |\n"
    "| `Split` `Stack` `Tile` `Roll` `StridedSlice` | slices, pads, concats: blocks of split "
    "dimensions are exchanged |\n"
    "| `CumSum` `ReduceProd` | log2(n) shifted sums, products of halves |\n"
    "| `ReduceAny` `ReduceAll` `ReduceMean` `LogSumExp` `ArgMin` | reductions |\n"
    "| `Einsum` | transposes and one `matmul` |\n"
    "| `SegmentSum` `ScatterAdd` `AddAlong` | `scatter_add`, `add_along` |\n"
    "| `TopK` | `argsort`; `take_along`, or for integers `sort` |\n";

Notes AllNotes() {
  Notes notes;
  for (const OpCase& c : program::OpCases()) {
    const OpDef& def = *program::Registry::Standard().Find(c.kind);
    const auto results = def.infer({c.types(), c.attrs});
    EXPECT_TRUE(results.ok()) << c.kind;
    for (const program::Factor& f : def.factors({c.types(), c.attrs}, *results).factors) {
      notes.known()[c.kind].factors.insert(FactorName(f.kind));
    }
  }
  for (const OpCase& c : CasesOfBackends()) {
    program::Builder b("case");
    std::vector<program::Value> inputs;
    b.Output("y", program::RecordCase(c, b, &inputs));
    const auto program = b.Build();
    EXPECT_TRUE(program.ok()) << c.kind << ": " << program.status().ToString();
    if (c.kind != "relayout") notes.Add(*program, "", {});
    notes.Add(*program, "a=2", FirstDimension(*program, "a=2"));
  }
  AddMoves(notes);
  // The partitioner makes it disappear.
  for (const std::string& backend : notes.backends()) {
    notes.known()["relayout"].runs.emplace(backend, true);
  }
  return notes;
}

std::string Page() {
  Notes notes = AllNotes();
  std::string page =
      "<!-- Made of the registry, the table of op cases and the backends by\n"
      "tests/contract/ops_page/ops_page_test.cc: change those, not this. -->\n"
      "# Operations\n\n"
      "| | |\n|---|---|\n"
      "| operands | how many it takes |\n"
      "| factors | how its dimensions move together: `map` is split freely, `sum`, `max` and `min` "
      "leave a pending reduction, `whole` is not split ([sharding](sharding.md)) |\n"
      "| gradient | whether one is defined |\n"
      "| a backend | whether it compiles what the contract suite runs of the operation |\n"
      "| pjrt | whether it has a row of StableHLO; that plugins compute the same, the label `pjrt` "
      "shows in part of the types, and beside `long` in all of them ([testing](testing.md)) |\n"
      "| proved in | element types that the contract suite compares with a reference, on every "
      "mesh of `cpu` and `discrete`: of the operands, `;` between operands that differ; then of "
      "the result, where no "
      "operand has the same |\n\n"
      "`between devices`: only partitioned programs, and programs of a replica, hold it.\n\n"
      "| operation | operands | factors | gradient | ";
  for (const std::string& backend : notes.backends()) page += backend + " | ";
  page += "pjrt | proved in |\n|---|---|---|---|";
  for (size_t i = 0; i < notes.backends().size() + 2; ++i) page += "---|";
  page += "\n";
  const auto yes = [](bool is) { return is ? "yes" : "no"; };
  for (const OpDef* def : program::Registry::Standard().All()) {
    Known& known = notes.known()[def->kind];
    std::string operands = std::to_string(def->min_operands);
    if (def->max_operands < 0) {
      operands += " or more";
    } else if (def->max_operands != def->min_operands) {
      operands += " to " + std::to_string(def->max_operands);
    }
    page += "| `" + def->kind + "` | " + operands + (def->collective ? ", between devices" : "") +
            " | " + Joined(known.factors) + " | " + yes(def->gradient != nullptr) + " | ";
    for (const std::string& backend : notes.backends()) {
      const auto runs = known.runs.find(backend);
      page += std::string(yes(runs != known.runs.end() && runs->second)) + " | ";
    }
    page += std::string(yes(pjrt::AllRows().contains(def->kind))) + " | " + TypesOf(known) + " |\n";
  }
  return page + ElementwiseTable() + kMadeOfThem;
}

TEST(OpsPageTest, ThePageIsWhatTheRowsSay) {
  const std::string path = std::string(MT_SOURCE_DIR) + "/docs/ops.md";
  const std::string want = Page();
  if (std::getenv("MT_WRITE_REFERENCE") != nullptr) {
    ASSERT_TRUE(WriteFileAtomically(path, want).ok());
  }
  const auto page = ReadFile(path);
  ASSERT_TRUE(page.ok()) << page.status().message();
  EXPECT_EQ(*page, want)
      << "the rows have changed: MT_WRITE_REFERENCE=1 build/dev/tests/ops_page_test";
}

// Every operation runs on every backend and is proved in some type.
TEST(OpsPageTest, NoOperationIsWithoutABackendOrAProof) {
  std::string page = Page();
  page.resize(page.find("\n## "));
  size_t at = page.find("| `");
  while (at != std::string::npos) {
    const std::string line = page.substr(at, page.find('\n', at) - at);
    std::vector<std::string> cells;
    for (size_t i = 0; i < line.size();) {
      const size_t end = std::min(line.find(" | ", i), line.size());
      cells.push_back(line.substr(i, end - i));
      i = end + 3;
    }
    ASSERT_EQ(cells.size(), 8u) << line;
    for (const size_t backend : {4, 5, 6}) EXPECT_EQ(cells[backend], "yes") << line;
    if (cells[0] != "| `relayout`") {
      EXPECT_NE(cells[7], "- |") << line;
    }
    at = page.find("\n| `", at);
    if (at != std::string::npos) ++at;
  }
}

// In each type that its row takes, of each operand and of the result.
TEST(OpsPageTest, NoOperationIsUnprovedInATypeThatItTakes) {
  Notes notes = AllNotes();
  for (const OpCase& row : program::OpCases()) {
    if (row.kind == "relayout") continue;
    Known& known = notes.known()[row.kind];
    for (const OpCase& twin : program::InEveryType(row)) {
      const auto types = twin.types();
      for (size_t i = 0; i < types.size(); ++i) {
        const size_t at = std::min(i, known.operands.size() - 1);
        EXPECT_TRUE(known.operands[at].contains(types[i].dtype))
            << row.kind << ": operand " << i << " in " << mesh::DTypeName(types[i].dtype);
      }
      const auto result = *mesh::TensorType::Parse(twin.result);
      EXPECT_TRUE(known.results.contains(result.dtype)) << row.kind << ": " << twin.result;
    }
  }
}

}  // namespace
}  // namespace meshtrain::device
