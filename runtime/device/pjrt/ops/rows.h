// The column of StableHLO of the table of ops: how each op of the registry is written. A new op is
// one row here, in its family's file. tests/runtime/device/pjrt names an op that lacks its row.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "runtime/device/pjrt/lowering.h"

namespace meshtrain::device::pjrt {

// Writes the op and sets its results.
using Row = void (*)(Lowering& l, const program::Op& op);
using Rows = std::map<std::string, Row, std::less<>>;

const Rows& AllRows();

void AddElementwise(Rows& rows);
void AddShape(Rows& rows);
void AddReduce(Rows& rows);
void AddLinear(Rows& rows);
void AddIndex(Rows& rows);
void AddSource(Rows& rows);
void AddRandom(Rows& rows);
void AddCollective(Rows& rows);
void AddWindow(Rows& rows);
void AddHalo(Rows& rows);
void AddGather(Rows& rows);
void AddSort(Rows& rows);

// The least or the largest of a type, a scalar: what a maximum, a minimum begins with.
Node Extreme(Module& m, mesh::DType dtype, bool least);

// All-reduces of one group, type and reduction as one instruction (a plan's bucket).
void LowerAllReduces(Lowering& l, std::span<const program::Op* const> ops);

}  // namespace meshtrain::device::pjrt
