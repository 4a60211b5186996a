// What a step must find finite before it changes a state, and where a NaN or an infinity begins.
// Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/program/program.h"

namespace meshtrain::program {

// The watched values that guard the program's updates: those on which an update depends, and with
// them, in their order, the losses. Empty where no update depends on one.
std::vector<Port> WatchedForUpdates(const Program& program);

// `program` with one more output, named `output`: how many elements of what guards its updates are
// not finite, in all `replicas` that run it, each its own part (f32[]). The replicas are the mesh's
// axis 0, and what they sum over it may not overflow either, so a part counts as finite up to the
// largest number / (2 * replicas). `program` as it is where nothing guards it.
Result<Program> WithGuard(const Program& program, int64_t replicas, const std::string& output);

struct FiniteCheck {
  Program program;  // without updates; output i: how many elements of `places[i]` are not finite
  std::vector<std::string> places;  // in program order: "input x", "state hidden_1.kernel", "log
                                    // (logits) at model.cc:31"; then what is watched
  size_t watched = 0;               // places from here on are what guards the updates

  // What counts, one for each place, say: "log (logits) at model.cc:31, then in the gradient of
  // `hidden_1.kernel`". "" where all are 0.
  std::string Explain(std::span<const double> counts) const;
};

// `program` with its outputs replaced by a count (f32[]) for each floating-point value of one
// element or more: inputs first, states, then ops in order; last, what guards its updates, with
// WithGuard's bound. Run on the inputs and states of a bad step, the first count above 0 names the
// op to blame. With `replicas` the counts are sums over all of them; 1: a program that is not for
// one replica of several.
Result<FiniteCheck> WithFiniteChecks(const Program& program, int64_t replicas = 1);

}  // namespace meshtrain::program
