// What a path stands for where weights are asked for.
#include "worker/trained.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/weights.h"
#include "tests/worker/small_job.h"

namespace meshtrain::worker {
namespace {

using ::testing::HasSubstr;

class WeightsAtTest : public SmallJobTest {
 protected:
  // The bias' first value of the weights that the path stands for.
  static Result<float> BiasAt(const std::string& path) {
    MT_ASSIGN_OR_RETURN(const std::string weights, WeightsAt(path));
    const mesh::NamedType wanted[] = {{"logits.bias", {mesh::DType::kF32, {10}}}};
    MT_ASSIGN_OR_RETURN(const auto values, checkpoint::LoadWeights(weights, wanted));
    return values[0].values<float>()[0];
  }
  void WriteModel(const std::string& path, float bias) const {
    const auto snapshot = EvenModel(1, bias);
    ASSERT_TRUE(
        checkpoint::WriteSafetensors(path, {{"logits.bias", snapshot.variables[1].blocks[0].value}})
            .ok());
  }
  static void ExpectRefused(const std::string& path, StatusCode code, const std::string& says) {
    const Status status = WeightsAt(path).status();
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_EQ(status.origin(), Origin::kInput);
    EXPECT_THAT(status.message(), HasSubstr(path + ": "));
    EXPECT_THAT(status.message(), HasSubstr(says));
  }
};

TEST_F(WeightsAtTest, ACheckpointOrTheNewestOfAFolderOfThem) {
  const std::string first = Save(folder_.path() + "/c", EvenModel(10, 1), false);
  const std::string second = Save(folder_.path() + "/c", EvenModel(20, 2), false);
  EXPECT_EQ(WeightsAt(first).value(), first);
  EXPECT_EQ(BiasAt(first).value(), 1);
  EXPECT_EQ(BiasAt(second).value(), 2);
  EXPECT_EQ(BiasAt(folder_.path() + "/c").value(), 2);
}

TEST_F(WeightsAtTest, AFileOrTheModelOfARun) {
  WriteModel(folder_.path() + "/w.safetensors", 3);
  EXPECT_EQ(BiasAt(folder_.path() + "/w.safetensors").value(), 3);
  // A run's model counts, not its checkpoints.
  const std::string run = folder_.path() + "/run";
  Save(run + "/checkpoints", EvenModel(10, 1), false);
  ExpectRefused(
      run, StatusCode::kFailedPrecondition,
      "got: one without (its newest checkpoint is " + run + "/checkpoints/ckpt-00000010)");
  WriteModel(run + "/model.safetensors", 4);
  EXPECT_EQ(WeightsAt(run).value(), run + "/model.safetensors");
  EXPECT_EQ(BiasAt(run).value(), 4);
}

TEST_F(WeightsAtTest, WhatHoldsNoWeightsIsRefused) {
  ExpectRefused(folder_.path() + "/none", StatusCode::kNotFound, "got: no such file or folder");
  ExpectRefused(folder_.path(), StatusCode::kInvalidArgument, "got: a folder without either");
  ASSERT_TRUE(WriteFileAtomically(folder_.path() + "/metrics.jsonl", "{}\n").ok());
  ExpectRefused(folder_.path(), StatusCode::kInvalidArgument, "got: a folder without either");
}

TEST_F(WeightsAtTest, DamagedOnesAreFoundWhenTheyAreRead) {
  const std::string path = Save(folder_.path() + "/c", EvenModel(10, 1), false);
  Damage(path);
  EXPECT_EQ(WeightsAt(path).value(), path);
  EXPECT_EQ(BiasAt(path).status().code(), StatusCode::kDataLoss);
  const std::string file = folder_.path() + "/w.safetensors";
  ASSERT_TRUE(WriteFileAtomically(file, "not a safetensors file").ok());
  const Status damaged = BiasAt(file).status();
  EXPECT_FALSE(damaged.ok());
  EXPECT_THAT(damaged.message(), HasSubstr(file));
}

}  // namespace
}  // namespace meshtrain::worker
