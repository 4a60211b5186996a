// What the backend suite's tests share: inputs of a program, its plan on a mesh, and how results
// are compared.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/plan/plan.h"
#include "runtime/sharding/sharding.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::device {

// Numbers that make every op sensible: floats from 0.1 to 2 with both signs, labels and counts
// small.
testing::StepInput InputFor(const program::Program& program, uint64_t seed);

// Each element of `want` is in `got` and no further from it than `tolerance` x the larger of 1 and
// its size.
void ExpectNear(const testing::StepResult& got, const testing::StepResult& want, double tolerance);

// A program that cannot be sharded or planned so fails the test.
plan::Plan PlanOf(const program::Program& program, const std::string& mesh_text,
                  const sharding::Given& given, plan::Options options = {});

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
