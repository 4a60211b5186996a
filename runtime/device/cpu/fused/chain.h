// What a chain of element-wise ops computes: its ops as nodes, of which pairs that occur often have
// become one. fused.cc runs it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/kernels.h"

namespace meshtrain::device::cpu::fused {

using mesh::Dims;
using mesh::DType;
using program::Op;
using program::Program;
using program::ValueId;

struct Source {
  enum Kind : uint8_t { kNode, kFull, kElement, kConstant, kBroadcast } kind = kNode;
  int node = -1;        // kNode
  ValueId value = -1;   // kFull, kElement, kBroadcast
  Element constant;     // kConstant
  bool of_row = false;  // kNode: an element for each row, wanted for each element of it
  DType dtype = DType::kF32;

  bool scalar() const { return kind == kElement || kind == kConstant; }
  // Is it the same element, or the same tensor, by the same way?
  bool operator==(const Source& other) const;
};

struct Node {
  BlockOp op = BlockOp::kCopy;
  bool cast = false;  // from operand 0's dtype to `dtype`; op says nothing then
  std::vector<Source> in;
  DType dtype = DType::kF32;  // of the result
  ValueId value = -1;         // what it computes, if the program has a name for it
  bool stored = false;        // must reach memory
  bool row = false;           // an element for each row of the domain
  std::optional<Fold> fold;   // of the rows of operand 0; op says nothing then
  int64_t columns = 0;        // of operand 0, whose sums it computes; op says nothing then. 0: none
  int uses = 0;
  bool dead = false;  // merged into its user
};

class Chain {
 public:
  Chain(const Making& making, std::span<const int> ops);

  const Dims& domain() const { return domain_; }
  // Elements of the domain that stand for one element of a node of rows; 0 where there are none.
  int64_t row() const { return row_; }
  // Of which blocks are made whole: rows and columns are all divisors of it.
  int64_t unit() const { return unit_; }
  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  void Add(const Op& op);
  void AddGelu(const Op& op, const Source& x);
  Source Append(BlockOp op, DType dtype, std::vector<Source> in);
  // Append, or the node that computes the same already.
  Source Once(BlockOp op, DType dtype, std::vector<Source> in);
  void AddFold(const Op& op, const plan::Folded& folded);
  void Finish(const Op& op, const Source& made);
  Source SourceOf(ValueId v) const;
  // The node that `s` reads, when nothing else needs it.
  Node* Alone(const Source& s);
  // Makes `n` compute `op` of `in`, instead of reading `gone`.
  void Replace(Node& n, Node& gone, BlockOp op, std::vector<Source> in);
  // The vector first: loops take no scalar there.
  static bool VectorFirst(Node& n);
  void MergePairs();
  void MergeIntoDiv(Node& n);
  // (x * s) * t, both constants.
  void MergeScales(Node& n);
  void MergeIntoMul(Node& n);
  void MergeIntoSum(Node& n);

  const Making& making_;
  const Program& local_;
  Dims domain_;
  int64_t row_ = 0;
  int64_t unit_ = 1;
  std::vector<Node> nodes_;
  std::map<ValueId, int> made_;
  std::map<ValueId, ValueId> same_;  // by value that is copied nowhere: what it is a copy of
  bool in_row_ = false;              // what is being added, and reads, has an element for each row
};

}  // namespace meshtrain::device::cpu::fused
