// What the backend suite's tests share: small programs, inputs of a program, its plan on a mesh,
// and how results are compared.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/device/backend.h"
#include "runtime/plan/plan.h"
#include "runtime/program/builder.h"
#include "runtime/sharding/sharding.h"
#include "tests/support/interpreter/interpreter.h"
#include "tests/support/op_cases/cases.h"

namespace meshtrain::device {

// Programs of several ops: what one row of the table of ops cannot say.
struct SmallProgram {
  std::string name;
  // Records into the current builder, from `x` f[6,5], `y` f[6,5], `row` f[5], `column` f[6,1],
  // `one` f[], `b` bool[6,5], `labels` i64[6], `step` i64[].
  std::function<std::vector<program::Value>(std::map<std::string, program::Value>& in)> record;
};
std::vector<SmallProgram> SmallPrograms();

// The rows of the table of ops that a whole program may hold, those with floating-point numbers in
// each of their types; of every other type that an op takes, a row; and casts between all of them.
std::vector<program::OpCase> CasesOfBackends();

// A tensor as it is and summed: outputs `y` and, of numbers, `sum`.
program::Program Moved(const mesh::TensorType& type);

// Numbers that make every op sensible: floats from 0.1 to 2 with both signs, labels and counts
// small.
testing::StepInput InputFor(const program::Program& program, uint64_t seed);

// Each element of `want` is in `got` and no further from it than `tolerance` x the larger of 1 and
// its size; integers are equal.
void ExpectNear(const testing::StepResult& got, const testing::StepResult& want, double tolerance);

// A program that cannot be sharded or planned so fails the test.
plan::Plan PlanOf(const program::Program& program, const std::string& mesh_text,
                  const sharding::Given& given, plan::Options options = {});

// The plan that the backend makes of it, as sessions ask for it.
plan::Plan LoweredBy(const Backend& backend, const program::Program& program,
                     const std::string& mesh_text, const sharding::Given& given);

// Inputs of rank >= 1 cut along dimension 0 over the mesh's first axis.
sharding::Given FirstDimension(const program::Program& program, const std::string& mesh_text);

// Inputs of rank 1 cut over the mesh's first axis, of rank 2 over the first and over all the others
// together.
sharding::Given EveryAxis(const program::Program& program, const std::string& mesh_text);

// A convolution and a maximum, with gradients, over images that are split in space where links are
// slow: rows and columns are exchanged between neighbours.
program::Program WindowsInSpace();
inline constexpr const char* kSpaceMeshes[] = {"h=2", "h=3", "h=2,w=2", "h=3,w=4"};
plan::Plan PlanInSpace(const program::Program& windows, const std::string& mesh_text,
                       plan::Options options = {});

}  // namespace meshtrain::device
