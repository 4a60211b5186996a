// Finding where a NaN or an infinity begins. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/program/program.h"

namespace meshtrain::program {

struct FiniteCheck {
  Program program;  // without updates; output i is 1 when value `places[i]` is not finite, else 0
  std::vector<std::string> places;  // in program order: "input x", "state hidden_1.kernel", "log
                                    // (logits) at model.cc:31"
};

// `program` with its outputs replaced by one flag (f32 scalar) for each floating-point value of one
// element or more: inputs first, states, then ops in order. Run on the inputs and states of a bad
// step, the first flag that is set names the op to blame.
Result<FiniteCheck> WithFiniteChecks(const Program& program);

}  // namespace meshtrain::program
