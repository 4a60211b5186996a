// A small job of drawn digits and checkpoints of it, for tests of roles.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/checkpoint/save.h"
#include "runtime/mesh/tensor.h"
#include "runtime/saving/final.h"
#include "runtime/saving/position.h"
#include "runtime/trainer/job/config.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::worker {

// FOLDER and DATA are replaced; all else is as it stands.
inline constexpr char kSmallJob[] = R"(apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata: {name: digits}
spec:
  strategy: ParameterServer
  replicaSpecs: {chief: {replicas: 1}, worker: {replicas: 2}, ps: {replicas: 1}, evaluator: {replicas: 1}}
  checkpoint: {path: FOLDER/checkpoints}
  program:
    data:
      train: {idx: {images: DATA-images-idx3-ubyte.gz, labels: DATA-labels-idx1-ubyte.gz}}
      test: {idx: {images: DATA-images-idx3-ubyte.gz, labels: DATA-labels-idx1-ubyte.gz}, take: 200}
      map: [{scale: 0.00392156862745098}]
      batch: 64
    model: [flatten, dense: {name: logits, units: 10}]
    loss: {sparse_categorical_crossentropy: {from_logits: true}}
    optimizer: sgd
    metrics: [accuracy]
    train: {epochs: 1}
)";

inline std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  EXPECT_NE(text.find(from), std::string::npos) << from;
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

class SmallJobTest : public ::testing::Test {
 protected:
  // Of kSmallJob in the test's folder, whose data is there or, with `away`, not.
  std::string Text(bool away = false) const {
    return Replaced(Replaced(kSmallJob, "FOLDER", folder_.path()), "DATA",
                    away ? folder_.path() + "/away" : MT_TESTDATA "/mlp/digits5120");
  }
  // A process of the job, which answers nowhere.
  trainer::JobConfig Config(const std::string& text) const {
    trainer::JobConfig config;
    config.file = folder_.path() + "/job.yaml";
    EXPECT_TRUE(WriteFileAtomically(config.file, text).ok());
    config.output = folder_.path() + "/out";
    config.port.reset();
    config.threads = 1;
    return config;
  }

  testing_folder::TempFolder folder_;
};

inline mesh::Tensor Filled(mesh::Dims dims, float value) {
  mesh::Tensor tensor(mesh::TensorType{mesh::DType::kF32, std::move(dims)});
  for (float& v : tensor.mutable_values<float>()) v = value;
  return tensor;
}

// Of the small job's model, every bias being `bias`: the same logits for all classes.
inline checkpoint::Snapshot EvenModel(int64_t step, float bias) {
  checkpoint::Snapshot snapshot{.step = step};
  snapshot.metadata = saving::PositionToMetadata({.step = step, .epoch = 1});
  const mesh::Tensor kernel = Filled({784, 10}, 0), biases = Filled({10}, bias);
  snapshot.variables.push_back({"logits.kernel", kernel.type(), "", {{{0, 0}, kernel}}});
  snapshot.variables.push_back({"logits.bias", biases.type(), "", {{{0}, biases}}});
  return snapshot;
}

// The checkpoint's folder.
inline std::string Save(const std::string& folder, checkpoint::Snapshot snapshot, bool final) {
  if (final) snapshot.metadata[std::string(saving::kFinalKey)] = "true";
  const auto saved = checkpoint::Save(folder, snapshot);
  EXPECT_TRUE(saved.ok()) << saved.status().ToString();
  return saved.ok() ? *saved : "";
}

// Changes a byte of the checkpoint's first and last values.
inline void Damage(const std::string& checkpoint) {
  for (const auto& file : std::filesystem::directory_iterator(checkpoint)) {
    if (file.path().extension() != ".safetensors") continue;
    std::string bytes = ReadFile(file.path().string()).value();
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    bytes[sizeof header + header] ^= 1;
    bytes[bytes.size() - 5] ^= 1;
    EXPECT_TRUE(WriteFileAtomically(file.path().string(), bytes).ok());
  }
}

}  // namespace meshtrain::worker
