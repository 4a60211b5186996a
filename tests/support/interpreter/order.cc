// Elements in order along an axis, by counting: each element's rank is how many come before it.
#include <algorithm>

#include "tests/support/interpreter/parts.h"

namespace meshtrain::testing::interpreter {
namespace {

// A NaN is above every number; of equal ones the first comes first.
bool Before(Number x, int64_t x_at, Number y, int64_t y_at, bool descending) {
  const bool x_nan = std::isnan(x), y_nan = std::isnan(y);
  const bool above = descending ? (x_nan && !y_nan) || x > y : (y_nan && !x_nan) || x < y;
  const bool equal = x == y || (x_nan && y_nan);
  return above || (equal && x_at < y_at);
}

// One row of n elements, `step` apart.
struct Lane {
  const Array& x;
  int64_t begin, step, n;
  bool descending, bounded;

  Number At(int64_t i) const { return x.at[begin + i * step]; }
  double Error(int64_t i) const { return bounded ? x.error[begin + i * step] : 0; }
  // As early, and as late, as the interval allows.
  Number First(int64_t i) const { return descending ? At(i) + Error(i) : At(i) - Error(i); }
  Number Last(int64_t i) const { return descending ? At(i) - Error(i) : At(i) + Error(i); }
  bool Unknown() const {
    for (int64_t i = 0; i < n; ++i) {
      if (Error(i) == kUnknown) return true;
    }
    return false;
  }
  bool Exact() const {
    for (int64_t i = 0; i < n; ++i) {
      if (Error(i) != 0) return false;
    }
    return true;
  }
};

// place[r]: the element of rank r.
std::vector<int64_t> PlacesOf(const Lane& lane) {
  std::vector<int64_t> place(lane.n);
  for (int64_t i = 0; i < lane.n; ++i) {
    int64_t rank = 0;
    for (int64_t j = 0; j < lane.n; ++j) {
      rank += Before(lane.At(j), j, lane.At(i), i, lane.descending) ? 1 : 0;
    }
    place[rank] = i;
  }
  return place;
}

// For each rank, the farthest from `place` of the elements that might have it. Element i has at
// least the rank that those give which surely come before it, and so for those after.
std::vector<double> PlaceErrors(const Lane& lane, const std::vector<int64_t>& place) {
  std::vector<double> errors(lane.n, 0);
  for (int64_t i = 0; i < lane.n; ++i) {
    int64_t least = 0, most = lane.n - 1;
    for (int64_t j = 0; j < lane.n; ++j) {
      if (j == i) continue;
      least += Before(lane.Last(j), j, lane.First(i), i, lane.descending) ? 1 : 0;
      most -= Before(lane.Last(i), i, lane.First(j), j, lane.descending) ? 1 : 0;
    }
    for (int64_t r = least; r <= most; ++r) {
      errors[r] = std::max(errors[r], static_cast<double>(std::abs(i - place[r])));
    }
  }
  return errors;
}

// The element of rank r lies between those of rank r when all are as early, and as late, as they
// may be.
std::vector<double> ValueErrors(const Lane& lane, const std::vector<int64_t>& place) {
  std::vector<Number> first(lane.n), last(lane.n);
  for (int64_t i = 0; i < lane.n; ++i) {
    first[i] = std::min(lane.First(i), lane.Last(i));
    last[i] = std::max(lane.First(i), lane.Last(i));
  }
  const auto sort = [&](std::vector<Number>& v) {
    std::sort(v.begin(), v.end());
    if (lane.descending) std::reverse(v.begin(), v.end());
  };
  sort(first);
  sort(last);
  std::vector<double> errors(lane.n);
  for (int64_t r = 0; r < lane.n; ++r) {
    const Number v = lane.At(place[r]);
    errors[r] = static_cast<double>(std::max(v - first[r], last[r] - v));
  }
  return errors;
}

}  // namespace

std::optional<Array> InOrder(const Op& op, const Operands& x, const TensorType& type, Keep keep) {
  const bool places = op.kind == "argsort";
  if (!places && op.kind != "sort") return std::nullopt;
  const bool bounded = keep == Keep::kBounded;
  Array out(type);
  if (bounded) {
    StartBounds(out);
    if (!out.mass.empty()) out.grid = x[0]->grid;
  }
  const auto axis = static_cast<size_t>(op.attrs.Int("axis"));
  const int64_t n = x[0]->type.dims[axis], count = type.dims[axis];
  const int64_t step = mesh::Strides(type.dims)[axis];  // of both: what follows the axis is alike
  const int64_t lanes = count == 0 ? 0 : type.num_elements() / count;
  for (int64_t l = 0; l < lanes; ++l) {
    const int64_t o = l / step, c = l % step;
    const Lane lane{*x[0], o * n * step + c, step, n, op.attrs.Bool("descending"), bounded};
    const std::vector<int64_t> place = PlacesOf(lane);
    const bool unknown = bounded && lane.Unknown(), exact = !bounded || lane.Exact();
    std::vector<double> errors(n, 0);
    if (unknown) {
      errors.assign(n, places ? static_cast<double>(n) : kUnknown);
    } else if (!exact) {
      errors = places ? PlaceErrors(lane, place) : ValueErrors(lane, place);
    }
    for (int64_t r = 0; r < count; ++r) {
      const int64_t to = (o * count + r) * step + c;
      out.at[to] = places ? static_cast<Number>(place[r]) : lane.At(place[r]);
      if (!bounded) continue;
      out.error[to] = errors[r];
      // Any of the row may be here.
      for (int64_t i = 0; !out.mass.empty() && i < n; ++i) {
        if (exact && i != place[r]) continue;
        out.mass[to] = std::max(out.mass[to], x[0]->mass[lane.begin + i * step]);
      }
      CloseBound(out, to);
    }
  }
  return out;
}

}  // namespace meshtrain::testing::interpreter
