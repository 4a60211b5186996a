// The core MLP example, run on the fixture's batches against TensorFlow's losses
// (tests/testdata/mlp).
#pragma once

#include <string>
#include <vector>

#include "deploy/examples/core_mlp/model.h"
#include "runtime/data/pipeline.h"

namespace meshtrain {

inline constexpr int kGoldenSteps =
    39;  // the 40th batch of 5,000 images is short; the fixture's is not

// The folder of the fixture, with a slash at its end.
const std::string& MlpData();
// The losses of golden.json's run.
std::vector<double> Golden(const std::string& run);
// Batches of 128 in the fixture's order: images [128,28,28] in [0,1], labels [128]. Thread-safe.
const std::vector<data::Batch>& Batches();
Tensor AsF64(const Tensor& x);

struct Trained {
  std::vector<double> losses;
  int64_t planned_bytes = 0;  // collective bytes per step and device
  int64_t counted_bytes =
      0;  // as the communicator counted over all steps, for the first device of the process
};
// `steps` steps of the example on `mesh`, by the process that `options` names, its weights in
// `layouts` or else in those of the example. Dies on an error.
Trained TrainCoreMlp(const Mesh& mesh, SessionOptions options, int steps, DType dtype,
                     const std::vector<Layout>& layouts = {});

void ExpectClose(const std::vector<double>& got, const std::vector<double>& want, int count,
                 double relative);

}  // namespace meshtrain
