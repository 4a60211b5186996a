// Elements by numbers that another operand carries, and back, by their definitions. On a shard of
// the axis that the numbers count on, `axes` and `size` say which of its elements are here; the
// others are some other device's, and give 0.
#include "tests/support/interpreter/parts.h"

namespace meshtrain::testing::interpreter {
namespace {

// [outer, rows, inner] of which the rows are numbered, and [outer, ids, inner].
struct Numbered {
  int64_t outer = 1, rows = 1, inner = 1, size = 1, start = 0;
  const Array& ids;

  Numbered(const Op& op, const Dims& table, const Array& numbers, const Standpoint& here)
      : ids(numbers) {
    const auto axis = static_cast<size_t>(op.attrs.Int("axis"));
    for (size_t d = 0; d < table.size(); ++d) {
      (d < axis ? outer : d == axis ? rows : inner) *= table[d];
    }
    size = op.attrs.Int("size", rows);
    if (op.attrs.Has("axes")) start = ShardAlong(op, here) * rows;
  }

  enum class Where : uint8_t { kHere, kElsewhere, kNowhere };
  Where Of(int64_t i) const {
    const Number id = ids.at[i];
    if (!(id >= 0 && id < static_cast<Number>(size))) return Where::kNowhere;
    return id >= static_cast<Number>(start) && id < static_cast<Number>(start + rows)
               ? Where::kHere
               : Where::kElsewhere;
  }
  int64_t Row(int64_t i) const { return static_cast<int64_t>(ids.at[i]) - start; }
  bool Open(int64_t i) const { return !ids.error.empty() && ids.error[i] != 0; }
};

Array Gather(const Op& op, const Array& table, const Array& ids, const TensorType& type,
             const Standpoint& here) {
  Array out(type);
  const bool bounded = here.keep == Keep::kBounded;
  if (bounded) {
    StartBounds(out);
    out.grid = table.grid;
    out.parts = table.parts;
  }
  const Numbered n(op, table.type.dims, ids, here);
  const auto count = static_cast<int64_t>(ids.at.size());
  for (int64_t to = 0; to < type.num_elements(); ++to) {
    const int64_t column = to % n.inner, i = to / n.inner % count, o = to / n.inner / count;
    const auto where = n.Of(i);
    if (where == Numbered::Where::kNowhere) {
      out.at[to] = kNaN;
    } else if (where == Numbered::Where::kHere) {
      const int64_t from = (o * n.rows + n.Row(i)) * n.inner + column;
      out.at[to] = table.at[from];
      if (bounded) {
        out.error[to] = table.error[from];
        out.mass[to] = table.mass[from];
      }
    }
    if (!bounded) continue;
    if (n.Open(i)) out.error[to] = kUnknown;
    CloseBound(out, to);
  }
  return out;
}

Array ScatterAdd(const Op& op, const Array& ids, const Array& updates, const TensorType& type,
                 const Standpoint& here) {
  Array out(type);
  const bool bounded = here.keep == Keep::kBounded;
  if (bounded) {
    StartBounds(out);
    out.grid = updates.grid;
    out.parts = updates.parts;
  }
  const Numbered n(op, type.dims, ids, here);
  const auto count = static_cast<int64_t>(ids.at.size());
  std::vector<double> terms(out.at.size(), 0);
  bool nowhere = false, open = false;
  for (int64_t i = 0; i < count; ++i) {
    nowhere = nowhere || n.Of(i) == Numbered::Where::kNowhere;
    open = open || n.Open(i);
  }
  for (int64_t from = 0; from < updates.type.num_elements(); ++from) {
    const int64_t column = from % n.inner, i = from / n.inner % count, o = from / n.inner / count;
    if (n.Of(i) != Numbered::Where::kHere) continue;
    const int64_t to = (o * n.rows + n.Row(i)) * n.inner + column;
    out.at[to] += updates.at[from];
    ++terms[to];
    if (!bounded) continue;
    out.error[to] += updates.error[from];
    out.mass[to] += updates.mass[from];
  }
  for (size_t i = 0; i < out.at.size(); ++i) {
    out.at[i] = nowhere ? kNaN : static_cast<double>(out.at[i]);
    if (!bounded) continue;
    // One more for each device that adds its own part.
    if (terms[i] > 0) AddRounding(out, i, terms[i] + 16, out.mass[i], out.error[i] == 0);
    if (open) out.error[i] = kUnknown;
    CloseBound(out, i);
  }
  out.parts = PartsOf(out.parts, count);
  return out;
}

// The updates in their places, one after the other.
Array ScatterSet(const Op& op, const Operands& x, const TensorType& type, const Standpoint& here) {
  const Array &a = *x[0], &ids = *x[1], &updates = *x[2];
  Array out = a;
  const bool bounded = here.keep == Keep::kBounded;
  if (bounded) {
    out.grid = std::min(a.grid, updates.grid);
    out.parts = std::max(a.parts, updates.parts);
  }
  const Numbered n(op, type.dims, ids, here);
  const auto count = static_cast<int64_t>(ids.at.size());
  bool nowhere = false, open = false;
  for (int64_t i = 0; i < count; ++i) {
    nowhere = nowhere || n.Of(i) == Numbered::Where::kNowhere;
    open = open || n.Open(i);
  }
  for (int64_t from = 0; from < updates.type.num_elements(); ++from) {
    const int64_t column = from % n.inner, i = from / n.inner % count, o = from / n.inner / count;
    if (n.Of(i) != Numbered::Where::kHere) continue;
    const int64_t to = (o * n.rows + n.Row(i)) * n.inner + column;
    out.at[to] = updates.at[from];
    if (!bounded) continue;
    out.error[to] = updates.error[from];
    out.mass[to] = updates.mass[from];
  }
  for (size_t i = 0; i < out.at.size(); ++i) {
    if (nowhere) out.at[i] = kNaN;
    if (!bounded) continue;
    if (open) out.error[i] = kUnknown;
    CloseBound(out, i);
  }
  return out;
}

// Element [p, i, s] of [P..., N, S...] is about row ids[p, i, s] of [p, :, s].
Array TakeAlong(const Op& op, const Array& a, const Array& ids, const TensorType& type,
                const Standpoint& here) {
  Array out(type);
  const bool bounded = here.keep == Keep::kBounded;
  if (bounded) {
    StartBounds(out);
    out.grid = a.grid;
    out.parts = a.parts;
  }
  const Numbered n(op, a.type.dims, ids, here);
  const int64_t count = type.dims[op.attrs.Int("axis")];
  for (int64_t to = 0; to < type.num_elements(); ++to) {
    const int64_t column = to % n.inner, o = to / n.inner / count;
    const auto where = n.Of(to);
    if (where == Numbered::Where::kNowhere) {
      out.at[to] = kNaN;
    } else if (where == Numbered::Where::kHere) {
      const int64_t from = (o * n.rows + n.Row(to)) * n.inner + column;
      out.at[to] = a.at[from];
      if (bounded) {
        out.error[to] = a.error[from];
        out.mass[to] = a.mass[from];
      }
    }
    if (!bounded) continue;
    if (n.Open(to)) out.error[to] = kUnknown;
    CloseBound(out, to);
  }
  return out;
}

Array AddAlong(const Op& op, const Array& ids, const Array& updates, const TensorType& type,
               const Standpoint& here) {
  Array out(type);
  const bool bounded = here.keep == Keep::kBounded;
  if (bounded) {
    StartBounds(out);
    out.grid = updates.grid;
    out.parts = updates.parts;
  }
  const Numbered n(op, type.dims, ids, here);
  const int64_t count = ids.type.dims[op.attrs.Int("axis")];
  std::vector<double> terms(out.at.size(), 0);
  std::vector<bool> nowhere(n.outer * n.inner, false), open = nowhere;
  for (int64_t from = 0; from < ids.type.num_elements(); ++from) {
    const int64_t column = from % n.inner, o = from / n.inner / count;
    const auto where = n.Of(from);
    if (where == Numbered::Where::kNowhere) nowhere[o * n.inner + column] = true;
    if (n.Open(from)) open[o * n.inner + column] = true;
    if (where != Numbered::Where::kHere) continue;
    const int64_t to = (o * n.rows + n.Row(from)) * n.inner + column;
    out.at[to] += updates.at[from];
    ++terms[to];
    if (!bounded) continue;
    out.error[to] += updates.error[from];
    out.mass[to] += updates.mass[from];
  }
  for (int64_t i = 0; i < type.num_elements(); ++i) {
    const int64_t row = i / n.inner / n.rows * n.inner + i % n.inner;
    out.at[i] = nowhere[row] ? kNaN : static_cast<double>(out.at[i]);
    if (!bounded) continue;
    // One more for each device that adds its own part.
    if (terms[i] > 0) AddRounding(out, i, terms[i] + 16, out.mass[i], out.error[i] == 0);
    if (open[row]) out.error[i] = kUnknown;
    CloseBound(out, i);
  }
  out.parts = PartsOf(out.parts, count);
  return out;
}

}  // namespace

std::optional<Array> ByNumbers(const Op& op, const Operands& x, const TensorType& type,
                               const Standpoint& here) {
  if (op.kind == "gather") return Gather(op, *x[0], *x[1], type, here);
  if (op.kind == "scatter_add") return ScatterAdd(op, *x[0], *x[1], type, here);
  if (op.kind == "scatter_set") return ScatterSet(op, x, type, here);
  if (op.kind == "take_along") return TakeAlong(op, *x[0], *x[1], type, here);
  if (op.kind == "add_along") return AddAlong(op, *x[0], *x[1], type, here);
  return std::nullopt;
}

}  // namespace meshtrain::testing::interpreter
