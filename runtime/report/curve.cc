#include "runtime/report/curve.h"

#include <algorithm>
#include <cmath>

namespace meshtrain::report {
namespace {

// What follows `first` directly, joined to it.
CurvePoint Joined(const CurvePoint& first, const CurvePoint& next) {
  CurvePoint out = first.count == 0 ? next : first;
  out.first = first.first;
  out.x = next.x;
  out.absent = first.absent && next.absent;
  if (first.count == 0 || next.count == 0) return out;
  out.count = first.count + next.count;
  // Weighted, not summed: sums of large values could overflow.
  const double share = static_cast<double>(next.count) / static_cast<double>(out.count);
  out.value = first.value * (1 - share) + next.value * share;
  out.least = std::min(first.least, next.least);
  out.largest = std::max(first.largest, next.largest);
  return out;
}

}  // namespace

CurvePoint PointAt(double x, double value) {
  if (!std::isfinite(value)) return {.first = x, .x = x, .count = 0};
  return {.first = x, .x = x, .value = value, .least = value, .largest = value};
}

CurvePoint AbsentAt(double x) { return {.first = x, .x = x, .count = 0, .absent = true}; }

std::vector<CurvePoint> Thinned(const std::vector<CurvePoint>& points, int64_t most) {
  const auto size = static_cast<int64_t>(points.size());
  const int64_t group = (size + most - 1) / most;
  if (group <= 1) return points;
  std::vector<CurvePoint> out;
  for (int64_t i = 0; i < size; ++i) {
    if (i % group == 0) {
      out.push_back(points[i]);
    } else {
      out.back() = Joined(out.back(), points[i]);
    }
  }
  return out;
}

void Curve::Add(const CurvePoint& point) {
  if (in_last_ > 0 && in_last_ < per_point_) {
    points_.back() = Joined(points_.back(), point);
    ++in_last_;
    return;
  }
  if (static_cast<int64_t>(points_.size()) == most_) {
    points_ = Thinned(points_, (most_ + 1) / 2);
    // An odd number leaves the last one by itself.
    in_last_ = most_ % 2 == 0 ? 2 * per_point_ : per_point_;
    per_point_ *= 2;
    return Add(point);
  }
  points_.push_back(point);
  in_last_ = 1;
}

void Curve::CutBehind(double x) {
  while (!points_.empty() && points_.back().x > x) points_.pop_back();
  in_last_ = per_point_;
}

}  // namespace meshtrain::report
