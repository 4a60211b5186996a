// From a program over whole tensors to the program of one device, in two steps:
//   Propagate  a few given layouts -> a layout for every value and a split for every op
//   Partition  -> one program over local shards, the same for every device, with explicit
//              collectives
// Pure: the same arguments give the same bytes out.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/layout.h"
#include "runtime/program/program.h"

namespace meshtrain::sharding {

using mesh::Layout;
using mesh::Mesh;
using program::Program;
using program::ValueId;

// Layouts that the user gave, by name. States keep theirs from step to step (a state without one is
// replicated); inputs without one are propagated into; outputs without one are replicated, or, with
// `outputs_stay`, split as their producers leave them (what is pending there is reduced).
struct Given {
  std::map<std::string, Layout> inputs;
  std::map<std::string, Layout> states;
  std::map<std::string, Layout> outputs;
  bool outputs_stay = false;
};

// What moving bytes costs, for choosing between layouts and for predictions in the report. Measured
// numbers may be put here; the defaults are those of two cores that share memory.
struct CostModel {
  double flops_per_second = 2e11;
  double memory_bytes_per_second = 2e10;
  double link_bytes_per_second = 1e10;
  double collective_latency_seconds = 5e-6;
};

struct Options {
  CostModel cost;
  // A gather that nobody asked for, over all axes that split a value or some, is an error where a
  // device then has so many bytes of it or more (lint.h).
  int64_t replication_limit_bytes = int64_t{64} << 20;
  // Refuse shards of unequal size (kInvalidArgument naming the value, its dimension and the axis).
  bool refuse_uneven = false;
  // Adds the output kGuardOutput to a program that watches something on which an update depends.
  bool guard_updates = false;
};

// How many elements of all that the program watches are not finite, over all devices: f32[], the
// same on each of them, the last output of the partitioned program. Each value is counted where it
// lies: what is split, on its shards; what is a pending sum that nothing else reduces, on each
// device's part, where finite means that the sum cannot overflow. So the layouts, the other ops and
// their results are the same with the count and without.
inline constexpr std::string_view kGuardOutput = "watched/not_finite";

// How an op is split: per factor (registry.h) the mesh axes that split it. A pending reduction may
// also go through an op that is linear in the operands that carry it: then `passing` names it and
// `passing_operands` those operands.
struct OpSplit {
  std::vector<mesh::DimSharding> factors;
  std::vector<mesh::Partial> passing;
  std::vector<int> passing_operands;
  friend bool operator==(const OpSplit&, const OpSplit&) = default;
};

// Kept true: layouts[v] is the layout in which v's producer leaves it (pending reductions
// included); each op's operands are wanted in the layouts that its split implies, and where that
// differs from layouts[operand] Partition reshards.
struct Sharded {
  Program program;
  Mesh mesh;
  std::vector<Layout> layouts;  // per value
  std::vector<OpSplit> splits;  // per op
  std::vector<Layout>
      exits;  // per state: the layout that its exit value is stored in (its entry's)
  std::vector<Layout> outputs;     // per output
  std::vector<bool> output_given;  // per output: somebody asked for that layout
  std::vector<bool> state_given;   // per state: likewise
};

// Errors: kInvalidArgument (a given layout that does not fit, an unknown name, silent replication,
// uneven shards where refused), each naming the op, its source line and the alternatives.
Result<Sharded> Propagate(const Program& program, const Mesh& mesh, const Given& given,
                          const Options& options = {});

// The layout op `op` wants operand `i` in, and leaves result `r` in, under `split`.
Layout OperandLayout(const Sharded& s, int op, int operand);
Layout ResultLayout(const Sharded& s, int op, int result);

// One reshard that the partitioner wrote: why, and what it moves.
struct Reshard {
  std::vector<int> ops;  // indices of the collective ops in the local program, in order
  std::string value;     // text of the global value: "%12 f32[784,700] of matmul at model.cc:31"
  Layout from;
  Layout to;
  std::string reason;            // "input 0 of matmul (hidden_1)", "state w0 is stored replicated"
  int64_t bytes_per_device = 0;  // sent by one device, ring algorithms counted
  double predicted_seconds = 0;
};

// The program of one device. Every device runs the same one; what differs (its place) is in the
// mesh coordinates that collective and index-dependent ops read.
//
// Kept true: local types are Layout::LocalShape of the global ones; padding of uneven shards holds
// the identity of any reduction that crosses it (op `mask_pad` puts it there). Collective ops
// (registry rows with `collective`), `axes` = mesh axis indices, `group` = the product of their
// sizes, members as Mesh::Group orders them:
//   all_reduce      {axes, group, reduction:"sum"}
//   all_gather      {axes, group, dim, size}     shards joined along dim, cut to `size`
//   reduce_scatter  {axes, group, dim, reduction}  reduced, then this device's chunk of
//                   ceil(D/group), padded at the end
//   all_to_all      {axes, group, split_dim, concat_dim, size}  split along split_dim into chunks
//                   of ceil(D/group), joined along concat_dim, cut to `size`
//   halo            {axes, group, dim, size, starts, extent, value}  from chunks of ceil(D/group)
//                   of a dimension of `size` to a block of `extent` from starts[member] on; `value`
//                   outside (windows.h)
// and local ones that read the device's coordinates:
//   shard_slice     {axes, group, dim}           this device's chunk of ceil(D/group) of a whole
//                   dimension; padded
//   shard_window    {axes, group, dim, starts, extent, value}  likewise a block of the operand that
//                   the device has
//   mask_pad        {axes, dim, size, value}     elements past the valid extent of this device's
//                   shard of a dimension of `size` elements, split over `axes`, become `value`
// What pads is undefined unless a mask_pad put it there (zeros after slices and scatters).
// Index-dependent ops whose result is split carry `global_dims` and `layout` (the result's, as
// text); without these their shape is global.
struct Partitioned {
  Program local;
  Mesh mesh;
  std::vector<Layout>
      input_layouts;  // per input of `local` (same order and names as the global program's)
  std::vector<Layout> state_layouts;              // per state
  std::vector<Layout> output_layouts;             // per output
  std::vector<program::TensorType> input_types;   // global
  std::vector<program::TensorType> state_types;   // global
  std::vector<program::TensorType> output_types;  // global
  std::vector<Layout> layouts;             // per value of `local`: how it stands for a global value
  std::vector<program::Dims> global_dims;  // per value of `local`
  std::vector<Reshard> reshards;
  int guard_output = -1;  // kGuardOutput's index, the last one; -1: there is none
};

Result<Partitioned> Partition(const Sharded& sharded, const Options& options = {});

// Propagate, then Partition.
Result<Partitioned> Shard(const Program& program, const Mesh& mesh, const Given& given,
                          const Options& options = {});

// A mesh axis of more than one device that no layout names, nor any relayout of the program when
// there is one, does no work: every device along it would compute the same. Errors:
// kInvalidArgument naming the axis and how to use it.
Status CheckAxesUsed(const Mesh& mesh, const Given& given, const Program* program = nullptr);

// The mesh that one process computes on when its devices share memory: axes whose places all lie in
// one process become size 1, an axis that is split between processes keeps only its part between
// them. With one process that is the mesh of one device, and every collective vanishes: the shards
// are computed by one call over their union. Errors: kUnimplemented where processes do not cut the
// mesh into equal boxes.
Result<Mesh> CollapseLocal(const Mesh& mesh);
// `layout` on that mesh (axis names as before).
Layout OnMesh(const Layout& layout, const Mesh& collapsed);
// What propagation chose for `program` on the user's mesh, given on that one, so that both hold the
// same layouts.
Given OnMesh(const Partitioned& chosen, const program::Program& program, const Mesh& collapsed);

}  // namespace meshtrain::sharding
