#include "tests/e2e/core_mlp_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/file.h"
#include "runtime/execute/loaded_step.h"

namespace meshtrain {

const std::string& MlpData() {
  static const std::string folder = std::string(MT_TESTDATA) + "/mlp/";
  return folder;
}

std::vector<double> Golden(const std::string& run) {
  const auto json = nlohmann::json::parse(ReadFile(MlpData() + "golden.json").value());
  return json.at("runs").at(run).at("loss").get<std::vector<double>>();
}

const std::vector<data::Batch>& Batches() {
  static const std::vector<data::Batch> batches = [] {
    data::PipelineSpec spec;
    spec.source = {data::IdxFiles{MlpData() + "digits5120-images-idx3-ubyte.gz",
                                  MlpData() + "digits5120-labels-idx1-ubyte.gz"},
                   -1};
    spec.stages = {data::MapStage{{data::Scale{1.0 / 255}}}, data::BatchStage{128}};
    auto pipeline = data::Pipeline::Create(std::move(spec)).value();
    std::vector<data::Batch> all;
    while (auto batch = pipeline->Next().value()) all.push_back(std::move(*batch));
    return all;
  }();
  return batches;
}

Tensor AsF64(const Tensor& x) {
  Tensor y(TensorType{DType::kF64, x.dims()});
  const auto from = x.values<float>();
  std::copy(from.begin(), from.end(), y.mutable_values<double>().begin());
  return y;
}

Trained TrainCoreMlp(const Mesh& mesh, SessionOptions options, int steps, DType dtype,
                     const std::vector<Layout>& layouts) {
  const int64_t first = mesh.LocalRanks(options.process).at(0);
  const auto session = Session::Create(std::move(options)).value();
  const core_mlp::Mlp model =
      core_mlp::MakeMlp(*session, layouts.empty() ? core_mlp::WeightLayouts(mesh) : layouts, dtype)
          .value();
  const core_mlp::Adam optimizer = core_mlp::Adam::Create(*session, model.variables()).value();
  Function train(*session, "train_step", {"x", "y"}, [&](const Value& x, const Value& y) {
    return core_mlp::TrainStep(model, optimizer, x, y);
  });
  Trained run;
  execute::LoadedStep* step = nullptr;
  for (int i = 0; i < steps; ++i) {
    const data::Batch& batch = Batches()[i % Batches().size()];
    const Tensor x = dtype == DType::kF64 ? AsF64(batch.components[0]) : batch.components[0];
    const std::pair xy(core_mlp::Repack(*session, x, mesh).value(),
                       core_mlp::Repack(*session, batch.components[1], mesh).value());
    if (step == nullptr) {
      step = train
                 .Prepare(std::vector<TensorType>{xy.first.type(), xy.second.type()},
                          std::vector<Layout>{xy.first.layout(), xy.second.layout()})
                 .value();
    }
    EXPECT_TRUE(step->Feed(0, xy.first).ok());
    EXPECT_TRUE(step->Feed(1, xy.second).ok());
    EXPECT_TRUE(step->Run().ok());
    run.losses.push_back(step->FetchNumber(0).value());
  }
  run.planned_bytes = step->plan().CollectiveBytesPerStep();
  run.counted_bytes =
      step->CollectiveBytesSent(step->run_plan().partitioned.mesh == mesh ? first : 0);
  return run;
}

void ExpectClose(const std::vector<double>& got, const std::vector<double>& want, int count,
                 double relative) {
  ASSERT_GE(static_cast<int>(got.size()), count);
  for (int i = 0; i < count; ++i) {
    EXPECT_NEAR(got[i], want[i], relative * std::abs(want[i])) << "step " << i + 1;
  }
}

}  // namespace meshtrain
