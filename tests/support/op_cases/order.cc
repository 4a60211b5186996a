// Rows of ops that take and set elements by numbers, each row's own, and of order along an axis;
// then of shapes that meshes of two, three and four devices cut unevenly.
#include "tests/support/op_cases/cases.h"

namespace meshtrain::program {
namespace {

using Ints = std::vector<int64_t>;
using Operands = std::vector<std::string>;
using Rows = std::vector<OpCase>;
using namespace std::string_literals;

// Rows with ids of their own, and elements set.
void AddAlong(Rows& cases) {
  const auto along = [](int64_t axis) { return Attrs{{"axis", axis}}; };
  cases.push_back({"take_along",
                   {"f32[4,5]", "i64[4,3]"},
                   along(1),
                   "f32[4,3]",
                   "4map 5sum 3map: [0,1] [0,2] -> [0,2]"});
  cases.push_back({"take_along",
                   {"f32[3,4,2]", "i32[6,4,2]"},
                   along(0),
                   "f32[6,4,2]",
                   "3sum 6map 4map 2map: [0,2,3] [1,2,3] -> [1,2,3]"});
  cases.push_back({"add_along",
                   {"i64[4,3]", "f32[4,3]"},
                   {{"axis", int64_t{1}}, {"dims", Ints{4, 5}}},
                   "f32[4,5]",
                   "4map 5map 3sum: [0,2] [0,2] -> [0,1]"});
  cases.push_back({"add_along",
                   {"i32[6,4,2]", "f32[6,4,2]"},
                   {{"axis", int64_t{0}}, {"dims", Ints{3, 4, 2}}},
                   "f32[3,4,2]",
                   "3map 6sum 4map 2map: [1,2,3] [1,2,3] -> [0,2,3]"});
  cases.push_back({"scatter_set",
                   {"f32[5,4]", "i64[3]", "f32[3,4]"},
                   along(0),
                   "f32[5,4]",
                   "5map 4map 3whole: [0,1] [2] [2,1] -> [0,1]"});
  cases.push_back({"scatter_set",
                   {"f32[2,3,4]", "i32[5,2]", "f32[2,5,2,4]"},
                   along(1),
                   "f32[2,3,4]",
                   "2map 3map 4map 5whole 2whole: [0,1,2] [3,4] [0,3,4,2] -> [0,1,2]"});
}

void AddOrder(Rows& cases) {
  for (const std::string kind : {"sort", "argsort"}) {
    const auto result = [&](const std::string& dtype, const std::string& dims) {
      return (kind == "sort" ? dtype : "i64") + dims;
    };
    cases.push_back({kind,
                     {"f32[4,5]"},
                     {{"axis", int64_t{1}}},
                     result("f32", "[4,5]"),
                     "4map 5whole: [0,1] -> [0,1]"});
    cases.push_back({kind,
                     {"f32[2,6,3]"},
                     {{"axis", int64_t{1}}, {"descending", true}, {"count", int64_t{2}}},
                     result("f32", "[2,2,3]"),
                     "2map 6whole 2whole 3map: [0,1,3] -> [0,2,3]"});
    for (const char* dtype : {"u8", "i32", "i64"}) {
      cases.push_back({kind,
                       {dtype + "[4,6]"s},
                       {{"axis", int64_t{0}}, {"descending", dtype == "i32"s}},
                       result(dtype, "[4,6]"),
                       "4whole 6map: [0,1] -> [0,1]"});
    }
    cases.push_back({kind,
                     {"f32[4]"},
                     {{"axis", int64_t{0}}, {"count", int64_t{1}}},
                     result("f32", "[1]"),
                     "4whole: [0] -> [-]"});
  }
}

void AddUneven(Rows& rows, const std::string& kind, const std::string& note, Operands operands,
               Attrs attrs) {
  rows.push_back(
      {.kind = kind, .operands = std::move(operands), .attrs = std::move(attrs), .note = note});
}

void AddUnevenAlong(Rows& rows) {
  AddUneven(rows, "take_along", "", {"f64[5,4]", "i64[5,3]"}, {{"axis", int64_t{1}}});
  AddUneven(rows, "take_along", "of rows", {"f64[7,3]", "i32[5,3]"}, {{"axis", int64_t{0}}});
  AddUneven(rows, "take_along", "of f32", {"f32[5]", "i64[2]"}, {{"axis", int64_t{0}}});
  AddUneven(rows, "add_along", "", {"i64[5,3]", "f64[5,3]"},
            {{"axis", int64_t{1}}, {"dims", Ints{5, 4}}});
  AddUneven(rows, "add_along", "of rows", {"i32[5,3]", "f64[5,3]"},
            {{"axis", int64_t{0}}, {"dims", Ints{7, 3}}});
  AddUneven(rows, "add_along", "of f32", {"i64[2]", "f32[2]"},
            {{"axis", int64_t{0}}, {"dims", Ints{5}}});
  AddUneven(rows, "scatter_set", "", {"f64[5,3]", "i64[4]", "f64[4,3]"}, {{"axis", int64_t{0}}});
  AddUneven(rows, "scatter_set", "of columns", {"f64[4,5]", "i32[3]", "f64[4,3]"},
            {{"axis", int64_t{1}}});
  AddUneven(rows, "scatter_set", "sequences", {"f64[7,2]", "i32[3,2]", "f64[3,2,2]"},
            {{"axis", int64_t{0}}});
  AddUneven(rows, "scatter_set", "of one", {"f64[5]", "i64[]", "f64[]"}, {{"axis", int64_t{0}}});
  AddUneven(rows, "scatter_set", "of f32", {"f32[5]", "i64[2]", "f32[2]"}, {{"axis", int64_t{0}}});
}

void AddUnevenOrder(Rows& rows) {
  for (const char* kind : {"sort", "argsort"}) {
    AddUneven(rows, kind, "", {"f64[5,7]"}, {{"axis", int64_t{1}}});
    AddUneven(rows, kind, "of rows, from the largest", {"f64[5,3]"},
              {{"axis", int64_t{0}}, {"descending", true}});
    AddUneven(rows, kind, "of the first", {"f64[5,7]"},
              {{"axis", int64_t{1}}, {"descending", true}, {"count", int64_t{3}}});
    AddUneven(rows, kind, "of f32", {"f32[5,4]"}, {{"axis", int64_t{1}}});
    for (const char* dtype : {"u8", "i32", "i64"}) {
      AddUneven(rows, kind, "of "s + dtype, {dtype + "[3,5]"s},
                {{"axis", int64_t{1}}, {"descending", dtype == "u8"s}});
    }
  }
}

}  // namespace

std::vector<OpCase> OrderOpCases() {
  Rows rows;
  AddAlong(rows);
  AddOrder(rows);
  AddUnevenAlong(rows);
  AddUnevenOrder(rows);
  return rows;
}

}  // namespace meshtrain::program
