#include "tests/samples/rows.h"

// A line for each sample: the function in its file, and its kind.
#define MT_SAMPLES(ROW)     \
  ROW(Swish, LayerRow)      \
  ROW(Signum, OptimizerRow) \
  ROW(Huber, LossRow)       \
  ROW(Waves, SourceRow)     \
  ROW(Bias, MetricRow)      \
  ROW(LossScale, FieldRow)  \
  ROW(Pairs, SourceRow)

namespace meshtrain::samples {

#define MT_DECLARE(name, Kind) recipe::Kind name##Row();
MT_SAMPLES(MT_DECLARE)
#undef MT_DECLARE

std::vector<recipe::Row> Rows() {
#define MT_ROW(name, Kind) name##Row(),
  return {MT_SAMPLES(MT_ROW)};
#undef MT_ROW
}

}  // namespace meshtrain::samples
