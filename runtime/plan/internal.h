// The passes behind MakePlan, each a function from values to values.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/plan.h"

namespace meshtrain::plan {

// How an element-wise op's operand meets the result's index space.
enum class Spread : uint8_t { kFull, kScalar, kRow, kColumn, kOther };
Spread SpreadOf(const program::Dims& operand, const program::Dims& domain);

// Groups element-wise ops and what folds their results into chains and all-reduces into buckets,
// and puts everything in an order that keeps close to the recorded one. Fills kind, ops, reads and
// writes of the steps; scalar constants that only fused steps read get no step. `guards`: values
// that are made before any state's next value is, but for the next values that they depend on.
std::vector<Step> Schedule(const program::Program& local, const std::vector<ValueId>& guards,
                           const Options& options);

// Which ops belong to the chain of their readers rather than to that of their operand: those that
// make of one value, which is kept in memory in any case, another that is read only much later, as
// relu's gradient makes a mask. Beside their operand they would write what is read again later;
// beside their readers they read the operand. `chained`: which ops chains may hold.
std::vector<bool> WaitsForReaders(const program::Program& local, const std::vector<bool>& chained);

// Whether the step is a chain that folds: then its values differ in what an element of them stands
// for.
bool Folds(const program::Program& local, const Step& step);

// Gives every stored value its place and appends the copies that outputs and states need. No state
// changes its place before the plan's guard values are made. With
// `overlap`, fills Step::waits and keeps the buffers of a collective until it is complete.
void PlaceBuffers(Plan* plan, bool overlap);

// Checks what plan.h promises of every plan, by playing the steps on places instead of numbers:
// every op is in one step; every read finds the value that it wants, whole, where the plan says; no
// step writes what another one beside it still needs; every output and every state's next value
// stands in its place at the end; before the guard no state changes. `overlap`: collectives may go
// on until a step waits for them. Errors: kInternal with the step, the value and the plan's text,
// since no input should be able to cause one.
Status Verify(const Plan& plan, bool overlap);

// The steps with their ops, and the values with their places, for people who look into a plan.
std::string StepsText(const Plan& plan);

// Bytes one device sends for a collective op, ring algorithms counted as communicator.h says; 0 for
// local ops.
int64_t BytesSent(const program::Program& local, const program::Op& op);

}  // namespace meshtrain::plan
