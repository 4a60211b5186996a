// The passes behind MakePlan, each a function from values to values.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/plan.h"

namespace meshtrain::plan {

// How an element-wise op's operand meets the result's index space.
enum class Spread : uint8_t { kFull, kScalar, kRow, kColumn, kOther };
Spread SpreadOf(const program::Dims& operand, const program::Dims& domain);

// Which ops chains may hold: what follows from the op alone.
std::vector<bool> Chained(const program::Program& local, const Options& options);

// When chains compute their ops.
struct Computed {
  std::vector<int> level;  // per op: how many ops in no chain stand before it, one behind the other
  std::vector<bool> waits;  // per op: it belongs to the chain of its readers, at their level, and
                            // not to that of its operand
};

// Lets wait what is made of one value, which is kept in memory in any case, and read only much
// later, as relu's gradient makes a mask. Beside their operand such ops would write what is read
// again later; beside their readers they read the operand.
Computed WaitsForReaders(const program::Program& local, const std::vector<bool>& chained);

// Computes again, beside readers that come much later, what costs less than to be written and read
// again: x - mean of a normalisation, which its gradient reads, is made of x a second time. Values
// are repeated that one to three additions and products make of a value that is kept in memory in
// any case, and of small ones. `chained` and `computed` are of the program as it comes; returned is
// which of the new one's ops wait for their readers.
std::vector<bool> RepeatForReaders(sharding::Partitioned* program, const std::vector<bool>& chained,
                                   Computed computed, const Options& options);

// Groups element-wise ops and what folds their results into chains and all-reduces into buckets,
// and puts everything in an order that keeps close to the recorded one. Fills kind, ops, reads and
// writes of the steps; scalar constants that only fused steps read get no step. `guards`: values
// that are made before any state's next value is, but for the next values that they depend on.
// `waits`: which ops are joined to no operand's chain.
std::vector<Step> Schedule(const program::Program& local, const std::vector<bool>& waits,
                           const std::vector<ValueId>& guards, const Options& options);

// Whether the chain reads `read` where it writes `written`, element for element, so that both may
// have one place: each is of the chain's whole index space, and their elements are as wide.
bool AtTheSameIndex(const program::Program& local, const Step& step, ValueId read, ValueId written);

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
