// A plan: the program of one device put in order, with every buffer at a fixed place. What runs is this and nothing
// else; it prints, and its hash says whether two processes are about to do the same thing.
//
// Kept true: a value's producer is scheduled before its readers; two values whose lifetimes overlap never share bytes,
// except that an element-wise result may take the place of an operand of the same size that dies there; a state is
// updated in its own place only after the last read of its entry value (else through a copy at the end).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain::plan {

using program::ValueId;

enum class SlotKind : uint8_t {
  kNone,      // never stored: inside a fused chain, or dead
  kArena,     // bytes [offset, offset + bytes) of the arena
  kInput,     // the buffer fed for input `index`
  kState,     // state `index`'s own buffer
  kOutput,    // the buffer of output `index`
};

struct Slot {
  SlotKind kind = SlotKind::kNone;
  int index = 0;
  int64_t offset = 0;  // a multiple of 64
  int64_t bytes = 0;
};

enum class StepKind : uint8_t {
  kOp,          // one op
  kFused,       // a chain of element-wise ops over one index space, run block by block
  kCollective,  // one collective, or several of one kind and group in one bucket
  kCopy,        // value `copy_from` into the place of state or output `copy_to`
};

struct Step {
  StepKind kind = StepKind::kOp;
  std::vector<int> ops;         // indices into the local program's ops, in order
  std::vector<ValueId> reads;   // stored values it reads
  std::vector<ValueId> writes;  // stored values it writes
  ValueId copy_from = program::kNoValue;
  Slot copy_to;
};

struct CollectiveBytes {
  std::string kind;
  std::string axes;      // "batch", "batch,model"
  int64_t bytes = 0;     // sent by one device in one step
  int count = 0;         // instructions
};

struct Options {
  bool fuse = true;
  int64_t bucket_bytes = int64_t{4} << 20;  // all-reduces of one group are joined up to this size; 0: never
};

struct Plan {
  sharding::Partitioned partitioned;
  std::vector<Step> steps;
  std::vector<Slot> slots;  // per value of partitioned.local
  int64_t arena_bytes = 0;
  int64_t state_bytes = 0;   // per device
  int64_t input_bytes = 0;
  int64_t output_bytes = 0;
  int64_t peak_bytes = 0;    // arena + states + inputs + outputs, per device
  double flops = 0;          // per device and step
  uint64_t hash = 0;         // of the local program, layouts, mesh, order and places; not of names of files or lines

  const program::Program& local() const { return partitioned.local; }
  // Per kind and group, in the order of first use.
  std::vector<CollectiveBytes> Collectives() const;
  int64_t CollectiveBytesPerStep() const;
  // For people: mesh, layouts of inputs and states, each reshard with reason, bytes and predicted time, memory, hash.
  std::string Report() const;
};

Result<Plan> MakePlan(sharding::Partitioned partitioned, const Options& options = {});

}  // namespace meshtrain::plan
