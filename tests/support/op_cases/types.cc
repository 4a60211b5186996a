// Which element types an op takes, and rows in each of them.
#include <set>

#include "runtime/base/check.h"
#include "runtime/program/registry.h"
#include "tests/support/op_cases/cases.h"

namespace meshtrain::program {
namespace {

// Where `row` names an element type: the operands that share one are one place, the attribute
// `dtype` is another.
std::vector<std::string> Places(const OpCase& row) {
  std::vector<std::string> places;
  std::set<std::string> seen;
  for (const TensorType& type : row.types()) {
    const std::string name(mesh::DTypeName(type.dtype));
    if (seen.insert(name).second) places.push_back(name);
  }
  if (row.attrs.Has("dtype") || row.operands.empty()) places.emplace_back();
  return places;
}

// `row` with `dtype` in one of its places; it may be no row that the op takes.
OpCase WithType(OpCase row, const std::string& place, DType dtype) {
  const std::string name(mesh::DTypeName(dtype));
  if (place.empty()) {
    row.attrs.Set("dtype", name);
    return row;
  }
  const bool of_floats = mesh::IsFloat(*mesh::ParseDType(place));
  for (size_t i = 0; i < row.operands.size(); ++i) {
    std::string& operand = row.operands[i];
    if (operand.substr(0, operand.find('[')) != place) continue;
    operand.replace(0, place.size(), name);
    if (of_floats && !mesh::IsFloat(dtype)) row.whole.push_back(static_cast<int>(i));
  }
  return row;
}

bool Taken(OpCase& row) {
  const auto results = Registry::Standard().Find(row.kind)->infer({row.types(), row.attrs});
  if (results.ok()) row.result = (*results)[0].ToString();
  return results.ok();
}

}  // namespace

std::vector<std::string> OpCase::element_types() const {
  std::vector<std::string> found;
  const std::vector<TensorType> operands = types();
  for (size_t i = 0; i < operands.size(); ++i) {
    found.push_back("operand " + std::to_string(i) + " of " +
                    std::string(mesh::DTypeName(operands[i].dtype)));
  }
  found.push_back("result of " + result.substr(0, result.find('[')));
  return found;
}

std::vector<OpCase> InEveryType(const OpCase& row) {
  std::vector<OpCase> twins;
  for (const std::string& place : Places(row)) {
    for (const DType dtype : mesh::kAllDTypes) {
      OpCase twin = WithType(row, place, dtype);
      if (Taken(twin)) twins.push_back(std::move(twin));
    }
  }
  return twins;
}

std::vector<OpCase> CastCases() {
  std::vector<OpCase> rows;
  for (const DType from : mesh::kAllDTypes) {
    for (const DType to : mesh::kAllDTypes) {
      OpCase row{.kind = "cast", .operands = {std::string(mesh::DTypeName(from)) + "[5,3]"}};
      row.attrs.Set("dtype", std::string(mesh::DTypeName(to)));
      if (from != DType::kBool && !mesh::IsFloat(from)) row.whole = {0};
      row.note = "from " + std::string(mesh::DTypeName(from)) + " to " + mesh::DTypeName(to).data();
      row.draw = Draw::kWide;
      MT_CHECK(Taken(row));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::vector<OpCase> MissingTypes(const std::vector<OpCase>& rows) {
  std::set<std::pair<std::string, std::string>> present;
  const auto is_new = [&](const OpCase& c) {
    bool any = false;
    for (const std::string& type : c.element_types()) {
      any |= present.emplace(c.kind, type).second;
    }
    return any;
  };
  for (const OpCase& c : rows) is_new(c);
  std::vector<OpCase> missing;
  // The last rows first: those of uneven shapes.
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    for (OpCase& twin : InEveryType(*row)) {
      if (is_new(twin)) missing.push_back(std::move(twin));
    }
  }
  return missing;
}

}  // namespace meshtrain::program
