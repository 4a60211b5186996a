// What rows say of their dimensions, as text and against the evaluator: computing an op on pieces
// and joining them gives what it gives on the whole.
#include <gtest/gtest.h>

#include "runtime/program/registry.h"
#include "tests/support/op_cases/cases.h"
#include "tests/support/random/program.h"

namespace meshtrain::program {
namespace {

using testing::Array;

const char* KindName(FactorKind kind) {
  switch (kind) {
    case FactorKind::kMap:
      return "map";
    case FactorKind::kSum:
      return "sum";
    case FactorKind::kMax:
      return "max";
    case FactorKind::kMin:
      return "min";
    case FactorKind::kWhole:
      break;
  }
  return "whole";
}

std::string DimsText(const std::vector<DimFactors>& dims) {
  std::string text = "[";
  for (size_t d = 0; d < dims.size(); ++d) {
    text += d > 0 ? "," : "";
    if (dims[d].empty()) text += "-";
    for (size_t k = 0; k < dims[d].size(); ++k) {
      text += (k > 0 ? "." : "") + std::to_string(dims[d][k]);
    }
  }
  return text + "]";
}

std::string TableText(const FactorTable& table) {
  std::string text;
  for (const Factor& f : table.factors) {
    text += (text.empty() ? "" : " ") + std::to_string(f.size) + KindName(f.kind);
  }
  text += ":";
  for (const auto& operand : table.operands) text += " " + DimsText(operand);
  text += " ->";
  for (const auto& result : table.results) text += " " + DimsText(result);
  return text;
}

class FactorsTest : public ::testing::TestWithParam<OpCase> {
 protected:
  void SetUp() override {
    const OpCase& c = GetParam();
    def_ = Registry::Standard().Find(c.kind);
    if (!testing::IsOfWholePrograms(*def_)) def_ = nullptr;  // between devices
    if (def_ == nullptr) return;
    types_ = c.types();
    results_ = *def_->infer({types_, c.attrs});
    table_ = def_->factors({types_, c.attrs}, results_);
  }

  // The dimension whose first factor is `factor`, or -1.
  static int DimOf(const std::vector<DimFactors>& dims, int factor) {
    for (size_t d = 0; d < dims.size(); ++d) {
      if (!dims[d].empty() && dims[d][0] == factor) return static_cast<int>(d);
    }
    return -1;
  }
  bool FirstEverywhere(int factor) const {
    for (const auto* side : {&table_.operands, &table_.results}) {
      for (const auto& dims : *side) {
        for (const DimFactors& of : dims) {
          for (size_t k = 1; k < of.size(); ++k) {
            if (of[k] == factor) return false;
          }
        }
      }
    }
    return true;
  }

  const OpDef* def_ = nullptr;
  std::vector<TensorType> types_;
  std::vector<TensorType> results_;
  FactorTable table_;
};

TEST_P(FactorsTest, TableIsAsWritten) {
  if (def_ == nullptr || GetParam().factors.empty()) return;
  EXPECT_EQ(TableText(table_), GetParam().factors);
}

TEST_P(FactorsTest, SizesMultiplyToDimensions) {
  if (def_ == nullptr) return;
  ASSERT_EQ(table_.operands.size(), types_.size());
  ASSERT_EQ(table_.results.size(), results_.size());
  const auto product = [&](const DimFactors& factors) {
    int64_t size = 1;
    for (const int f : factors) size *= table_.factors.at(f).size;
    return size;
  };
  for (size_t r = 0; r < results_.size(); ++r) {
    ASSERT_EQ(table_.results[r].size(), results_[r].dims.size());
    for (size_t d = 0; d < results_[r].dims.size(); ++d) {
      if (table_.Windowed(true, static_cast<int>(r), static_cast<int>(d)) == nullptr) {
        EXPECT_EQ(product(table_.results[r][d]), results_[r].dims[d]);
      }
    }
  }
  for (size_t i = 0; i < types_.size(); ++i) {
    ASSERT_EQ(table_.operands[i].size(), types_[i].dims.size());
    for (size_t d = 0; d < types_[i].dims.size(); ++d) {
      if (table_.Windowed(false, static_cast<int>(i), static_cast<int>(d)) != nullptr) continue;
      EXPECT_EQ(product(table_.operands[i][d]), types_[i].dims[d])
          << "operand " << i << " dimension " << d;
    }
  }
}

// Cuts the op along one factor into two to four pieces, unequal ones included where the factor
// stands alone, and joins what the pieces give.
TEST_P(FactorsTest, PiecesMakeTheWhole) {
  const OpCase& c = GetParam();
  if (def_ == nullptr || def_->index_dependent) return;
  const auto whole = DrawOperands(c, 5);
  const Array want = EvaluateCase(c, c.attrs, whole, results_[0]);
  for (size_t f = 0; f < table_.factors.size(); ++f) {
    const Factor& factor = table_.factors[f];
    const int id = static_cast<int>(f);
    if (factor.kind == FactorKind::kWhole || !FirstEverywhere(id)) continue;
    // Windows need more than their piece: the prover cuts them.
    if (std::any_of(table_.windows.begin(), table_.windows.end(),
                    [&](const SlidingWindow& w) { return w.factor == id; })) {
      continue;
    }
    // Numbers that count along it mean others in a piece: the prover cuts it.
    if (std::any_of(table_.placed.begin(), table_.placed.end(), [&](const PlacedDim& d) {
          return (d.result ? table_.results : table_.operands)[d.tensor][d.dim][0] == id;
        })) {
      continue;
    }
    const int result_dim = DimOf(table_.results[0], id);
    ASSERT_EQ(result_dim >= 0, factor.kind == FactorKind::kMap);
    for (int64_t pieces = 2; pieces <= 4; ++pieces) {
      const int64_t chunk = (factor.size + pieces - 1) / pieces;
      Array joined(want.type);
      for (int64_t start = 0; start < factor.size; start += chunk) {
        const int64_t size = std::min(chunk, factor.size - start);
        std::vector<Array> locals;
        std::vector<TensorType> local_types;
        for (size_t i = 0; i < whole.size(); ++i) {
          Dims starts(types_[i].dims.size(), 0), sizes = types_[i].dims;
          if (const int d = DimOf(table_.operands[i], id); d >= 0) {
            const int64_t rest = sizes[d] / factor.size;
            starts[d] = start * rest;
            sizes[d] = size * rest;
          }
          local_types.push_back({types_[i].dtype, sizes});
          locals.push_back(Window(whole[i], local_types.back(), starts, 0));
        }
        Dims starts(want.type.dims.size(), 0), sizes = want.type.dims;
        if (result_dim >= 0) {
          const int64_t rest = sizes[result_dim] / factor.size;
          starts[result_dim] = start * rest;
          sizes[result_dim] = size * rest;
        }
        Attrs attrs = c.attrs;
        if (attrs.Has("dims")) attrs.Set("dims", sizes);
        const auto inferred = def_->infer({local_types, attrs});
        ASSERT_TRUE(inferred.ok()) << inferred.status().ToString();
        ASSERT_EQ((*inferred)[0].dims, sizes);
        const Array got = EvaluateCase(c, attrs, locals, (*inferred)[0]);
        // Back into its place, or onto what the other pieces gave.
        size_t k = 0;
        for (size_t at = 0; at < want.at.size(); ++at) {
          bool inside = true;
          size_t rest = at;
          for (size_t d = want.type.dims.size(); d-- > 0;) {
            const auto index = static_cast<int64_t>(rest % want.type.dims[d]);
            rest /= want.type.dims[d];
            inside = inside && index >= starts[d] && index < starts[d] + sizes[d];
          }
          if (!inside) continue;
          testing::Number& y = joined.at[at];
          const testing::Number x = got.at[k++];
          const bool first = start == 0 || factor.kind == FactorKind::kMap;
          y = first                             ? x
              : factor.kind == FactorKind::kSum ? y + x
              : factor.kind == FactorKind::kMax ? std::max(y, x)
                                                : std::min(y, x);
        }
        ASSERT_EQ(k, got.at.size());
      }
      for (size_t at = 0; at < want.at.size(); ++at) {
        ASSERT_NEAR(joined.at[at], want.at[at], 1e-9)
            << "factor " << f << " in " << pieces << " pieces";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, FactorsTest, ::testing::ValuesIn(OpCases()), OpCaseName);

}  // namespace
}  // namespace meshtrain::program
