// A plan: the program of one device put in order, with every buffer at a fixed place. What runs is
// this and nothing else; it prints, and its hash says whether two processes are about to do the
// same thing.
//
// Kept true, and checked of every plan before MakePlan returns it: each op is in one step, but for
// the constants below; a value's producer is scheduled before its readers; two values whose
// lifetimes overlap never share bytes; an all-reduce or a reshape may leave its result in its
// operand's place, and a fused step writes over an operand that nothing reads behind it, element
// for element; a state is updated in its own place by the last reader of its entry value or later,
// else through a copy at the end. A scalar `constant` that only fused steps read is never stored:
// its slot is kNone, it is in no step, and readers take the number from the op. Fused steps hold
// element-wise ops whose results all have the same dimensions D, and what folds these (Folded); an
// operand that enters from outside has D's dimensions, or one element, or is a row (D's trailing
// dimensions, the leading ones absent or 1) or a column (D's leading dimensions, the trailing ones
// 1).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/plan/options.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain::plan {

using program::ValueId;

enum class SlotKind : uint8_t {
  kNone,    // never stored: inside a fused chain, or dead
  kArena,   // bytes [offset, offset + bytes) of the arena
  kInput,   // the buffer fed for input `index`
  kState,   // state `index`'s own buffer
  kOutput,  // the buffer of output `index`
};

struct Slot {
  SlotKind kind = SlotKind::kNone;
  int index = 0;
  int64_t offset = 0;  // a multiple of 64
  int64_t bytes = 0;
};

enum class StepKind : uint8_t {
  kOp,          // one op
  kFused,       // a chain of element-wise ops over one index space, of folds of its rows and what
                // is made of them, and of sums of its columns, run block by block
  kCollective,  // one op that Communicates, or several of one kind and group in one bucket
  kCopy,  // the bytes of `copy_from` to `copy_to`: outputs and states that nothing computes in
          // their place
};

struct Step {
  StepKind kind = StepKind::kOp;
  std::vector<int> ops;         // indices into the local program's ops, in order
  std::vector<ValueId> reads;   // stored values it reads
  std::vector<ValueId> writes;  // stored values it writes
  std::vector<int>
      waits;  // collective steps before it that must be complete when it begins (Options::overlap)
  Slot copy_from;
  Slot copy_to;
};

// True for the ops that move bytes between devices; shard_slice and mask_pad only look at the
// device's coordinates and are steps of kind kOp.
bool Communicates(const program::Op& op);

// A reduction of f32 or f64 that a chain may hold: which elements of its operand it makes one.
struct Folded {
  enum Kind : uint8_t {
    kNothing,  // no chain holds it
    kRows,     // the last dimensions, or all
    kColumns,  // the first dimensions, or all of very many, which it adds
  };
  Kind kind = kNothing;
  int64_t count = 1;    // elements that become one
  int64_t columns = 1;  // kColumns: elements that it makes
};
Folded FoldedBy(const program::Program& local, const program::Op& op);

// Whether collectives leave the process: what Options::overlap is for.
bool SpansProcesses(const mesh::Mesh& mesh);
// `options` as every step over `mesh` has them, whoever plans it: collectives overlap where they
// leave the process; loops stay as they are for devices whose compiler joins them (kPjrt); packs of
// `bucket_bytes`, where given.
Options OptionsOn(const mesh::Mesh& mesh, Options options,
                  std::optional<int64_t> bucket_bytes = std::nullopt);

// Where a group of 3, 5, 6, 7 does not divide the bytes, the fraction of one is cut off: here for
// each op, by a communicator for each call, which may hold several ops.
struct CollectiveBytes {
  std::string kind;
  std::string axes;   // "batch", "batch,model"
  int64_t bytes = 0;  // sent by one device in one step
  int count = 0;      // instructions
};

struct Plan {
  sharding::Partitioned partitioned;
  std::vector<Step> steps;
  std::vector<Slot> slots;  // per value of partitioned.local
  // After this step, and before the first that changes a state, the values of the outputs `guarded`
  // and `zero_output` are complete; a run in which a guarded one is not finite, or zero_output's is
  // not 0, ends there in kAborted, with every state as it was. A state whose next value they depend
  // on gets it through a copy at the end. -1: nothing was asked, or no state changes.
  int guard_step = -1;
  std::vector<int> guarded;  // indices of outputs
  int zero_output = -1;      // index of an output, f32[]; -1: none

  // The values of the above.
  std::vector<ValueId> GuardValues() const;
  int64_t arena_bytes = 0;
  int64_t state_bytes = 0;  // per device
  int64_t input_bytes = 0;
  int64_t output_bytes = 0;
  int64_t peak_bytes = 0;  // arena + states + inputs + outputs, per device
  double flops = 0;        // per device and step; what chains compute again counts once
  uint64_t hash =
      0;  // of the local program, layouts, mesh, order and places; not of names of files or lines

  const program::Program& local() const { return partitioned.local; }
  // Per kind and group, in the order of first use.
  std::vector<CollectiveBytes> Collectives() const;
  int64_t CollectiveBytesPerStep() const;
  // Of the collectives alone: kinds, groups, types, buckets and their order. Equal where plans make
  // the same calls, whatever they compute between them.
  uint64_t CollectivesHash() const;
  // For people: mesh, layouts of inputs and states, each reshard with reason, bytes and predicted
  // time, memory, hash.
  std::string Report() const;
};

// Errors: kInvalidArgument (program::Validate; a collective of other axes or group than the mesh's;
// a finite output split between processes); kInternal, with the text of a plan that is not as
// above.
Result<Plan> MakePlan(sharding::Partitioned partitioned, const Options& options = {});

}  // namespace meshtrain::plan
