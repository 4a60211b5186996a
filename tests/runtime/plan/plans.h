// Plans of programs that tests record.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "runtime/plan/plan.h"
#include "runtime/program/builder.h"

namespace meshtrain::plan {

// The program as it stands, for each device of `mesh`.
inline sharding::Partitioned AsItStands(program::Program program, const mesh::Mesh& mesh = {}) {
  sharding::Partitioned p;
  p.mesh = mesh;
  for (const auto& port : program.inputs) {
    p.input_types.push_back(program.type(port.value));
    p.input_layouts.push_back(mesh::Layout::Replicated(p.mesh, program.type(port.value).rank()));
  }
  for (const auto& state : program.states) {
    p.state_types.push_back(program.type(state.entry));
    p.state_layouts.push_back(mesh::Layout::Replicated(p.mesh, program.type(state.entry).rank()));
  }
  for (const auto& port : program.outputs) {
    p.output_types.push_back(program.type(port.value));
    p.output_layouts.push_back(mesh::Layout::Replicated(p.mesh, program.type(port.value).rank()));
  }
  for (const auto& value : program.values) {
    p.layouts.push_back(mesh::Layout::Replicated(p.mesh, value.type.rank()));
    p.global_dims.push_back(value.type.dims);
  }
  p.local = std::move(program);
  return p;
}

// MakePlan verifies what it made (verify_test.cc shows what that finds).
inline Plan PlanOf(program::Builder& b, const Options& options = {}, const mesh::Mesh& mesh = {}) {
  auto program = b.Build();
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  auto plan = MakePlan(AsItStands(*program, mesh), options);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return *plan;
}

inline int CountSteps(const Plan& plan, StepKind kind) {
  return static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(),
                                        [&](const Step& s) { return s.kind == kind; }));
}

inline int OpsInSteps(const Plan& plan) {
  int ops = 0;
  for (const Step& step : plan.steps) ops += static_cast<int>(step.ops.size());
  return ops;
}

}  // namespace meshtrain::plan
