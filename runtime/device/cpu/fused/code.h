// What a chain's nodes become: instructions over registers of one block each. code.cc makes them,
// fused.cc runs them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/device/cpu/fused/chain.h"
#include "runtime/device/cpu/fused/machine_code.h"

namespace meshtrain::device::cpu::fused {

// A place that instructions read or write: `stride` is a tensor's element size, 0 for registers and
// single elements.
struct Base {
  enum Kind : uint8_t { kRegister, kValue, kConstant } kind = kRegister;
  int64_t offset = 0;  // of a register
  ValueId value = -1;
  Element constant;
  int64_t stride = 0;
  bool row = false;  // of a value that has an element for each row
};

struct Load {
  Dims sizes,
      strides;  // of the domain, in elements of the operand; dimensions joined where possible
  ValueId value = -1;
  int64_t width = 4;
};

struct Instruction {
  BlockFn fn = nullptr;            // null: fill or load
  BlockOp op = BlockOp::kCount;    // what fn computes; kCount: a cast
  ScalarMask scalars = 0;          // which of its operands are single elements
  int d = 0, a = 0, b = 0, c = 0;  // bases
  int operands = 0;                // how many of a, b and c it reads
  int load = -1;                   // index, or -1: fill d with the element a
  int64_t width = 4;               // of a fill
  bool once = false;               // a fill or load in a piece's first block only: nothing else
                                   // writes its register
  bool row = false;                // of as many elements as the block has rows
  bool spread = false;             // the element that `a` has for a row, to each of the row's
  std::optional<Fold> fold;        // of a's rows
  int sum = -1;                    // of a's columns: its index
  Type type = Type::kF32;          // of a fold, and of fn's last operand
  int run = -1;                    // of several such, by machine code: its index
};

// Of columns.
struct Sum {
  ValueId value = -1;
  int64_t columns = 1;
  int64_t offset = 0;  // among those of one part
  Type type = Type::kF32;
};

struct Code {
  std::vector<Base> bases;
  std::vector<Load> loads;
  std::vector<Instruction> block;  // for each block
  std::vector<Sum> sums;
  std::vector<std::shared_ptr<const MachineCode>> runs;
  int64_t columns = 0;    // of all sums
  int64_t registers = 0;  // of one block each; a register's offset is its index
  int64_t apart = 0;      // as many where no instructions have been joined to runs
  int64_t unit = 1;       // elements of which blocks are made of whole ones
};

// Errors: kUnimplemented, where there is no loop for a node.
Result<Code> MakeCode(const Making& making, const Chain& chain);

}  // namespace meshtrain::device::cpu::fused
