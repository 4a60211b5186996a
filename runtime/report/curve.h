// A figure of every step in bounded memory, for a curve. Pure; used by one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

namespace meshtrain::report {

// One place of a curve: a value, or several in a row as their mean with the least and the largest.
struct CurvePoint {
  double first = 0, x = 0;  // where the first and the last of them stand
  double value = 0;
  double least = 0, largest = 0;
  int64_t count = 1;    // of finite values; 0: a gap
  bool absent = false;  // a gap at which nothing was measured, so that a line may go over it
};
CurvePoint PointAt(double x, double value);  // a gap where `value` is not finite
CurvePoint AbsentAt(double x);

// At most `most` points for as many as there are: neighbours in groups of one size, which is the
// least that does.
std::vector<CurvePoint> Thinned(const std::vector<CurvePoint>& points, int64_t most);

// Grows by one value at a time. Holds at most `most` points (at least 2): when they are full, each
// two neighbours become one.
class Curve {
 public:
  explicit Curve(int64_t most = 512) : most_(most) {}
  void Add(double x, double value) { Add(PointAt(x, value)); }  // x rises
  void AddAbsent(double x) { Add(AbsentAt(x)); }
  // What lies behind `x` is forgotten, with what shares a point with it.
  void CutBehind(double x);
  const std::vector<CurvePoint>& points() const { return points_; }

 private:
  void Add(const CurvePoint& point);
  int64_t most_;
  int64_t per_point_ = 1;  // values
  int64_t in_last_ = 0;    // values of the last point
  std::vector<CurvePoint> points_;
};

}  // namespace meshtrain::report
