// Machine code for a run: element-wise operations that hand each other their results in vector
// registers, where the loops of kernels/ would write and read them again. f32, on processors with
// AVX2 or AVX-512, assembled by Xbyak; elsewhere there is none, and the loops serve.
//
// Kept true: the bits are those of the loops of the same instruction set, for any number of
// elements; of NaNs any is as good as another. Nothing behind the n-th element is read or written
// (a processor may be told that it will be).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/device/cpu/kernels.h"

namespace meshtrain::device::cpu::fused {

// Where a base lies for the block at hand.
struct Place {
  std::byte* p;
  int64_t stride;  // bytes from an element to the next; 0: one element
};

// A number for each element of a block: `base` is an index into the places that the code is given.
// kInverse: 1 / (s f) of the element s that is there; kFactor: f, a power of two (DivideBy in
// kernels/block.cc).
struct RunValue {
  enum Kind : uint8_t { kMemory, kElement, kInverse, kFactor, kConstant, kMade } kind = kMemory;
  int base = -1;       // of all but kConstant and kMade
  float constant = 0;  // kConstant
  bool operator==(const RunValue&) const = default;
};

struct RunStep {
  BlockOp op = BlockOp::kCopy;
  // Values; a kMade one only behind the step that makes it. kDiv has two, or three where the
  // divisor is an element: in[0] * factor * inverse, which are in[2] and in[1].
  std::array<int, 3> in = {-1, -1, -1};
  int made = -1;         // value; -1 for kCopy, which stores and makes nothing
  int store = -1;        // the base that it is stored to; -1: none
  bool streams = false;  // to there, block behind block
  bool operator==(const RunStep&) const = default;
};

struct Run {
  std::vector<RunValue> values;
  std::vector<RunStep> steps;
  bool operator==(const Run&) const = default;
};

// How many operands an operation has that can be in a run; nullopt: it cannot.
std::optional<int> RunOperands(BlockOp op);

// Code for one run. Any number of threads.
class MachineCode {
 public:
  using Function = void (*)(const Place* places, int64_t n);
  MachineCode(Function function, std::shared_ptr<const void> memory)
      : function_(function), memory_(std::move(memory)) {}
  void operator()(const Place* places, int64_t n) const { function_(places, n); }
  Function function() const { return function_; }

 private:
  Function function_;
  std::shared_ptr<const void> memory_;
};

// Whether there is machine code for runs on the instruction set of `kernels`, and registers enough
// for this one.
bool Assembles(const Kernels& kernels);
bool Assembles(const Kernels& kernels, const Run& run);

// Of equal runs there is one code, for as long as anyone has it. Null where memory for it is
// refused, or there is none.
std::shared_ptr<const MachineCode> Assemble(const Kernels& kernels, const Run& run);

}  // namespace meshtrain::device::cpu::fused
