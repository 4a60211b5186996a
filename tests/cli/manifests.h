// Manifests that the command line's tests write, and one that fits tests/testdata/mlp.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <string_view>

#include "tests/support/temp_folder.h"

namespace meshtrain::cli {

// A program alone, for the 5,120 digits of tests/testdata/mlp.
inline constexpr std::string_view kProgram = R"(# keeps its comment
seed: 3
mesh: {batch: 2}
data:
  train: {idx: {images: DATA/digits5120-images-idx3-ubyte.gz, labels: DATA/digits5120-labels-idx1-ubyte.gz}}
  map: [{scale: 0.0625}]
  batch: 64
model:
  - flatten
  - dense: {name: hidden, units: 12, activation: relu}
  - dense: {name: logits, units: 10}
loss: {sparse_categorical_crossentropy: {from_logits: true}}
optimizer: {adam: {learning_rate: 0.01}}
train: {epochs: 1}
)";

// The same within a TrainingJob of two workers.
inline constexpr std::string_view kJobHead = R"(apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata: {name: digits}
spec:
  replicaSpecs: {worker: {replicas: 2}}
  program:
)";

inline std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  for (size_t next = at; next != std::string::npos; next = text.find(from, next + to.size())) {
    text.replace(next, from.size(), to);
  }
  return text;
}

inline std::string ProgramText() {
  return Replaced(std::string(kProgram), "DATA", MT_TESTDATA "/mlp");
}

inline std::string JobText() {
  std::string text(kJobHead);
  std::string line;
  for (const char c : ProgramText()) {
    line += c;
    if (c != '\n') continue;
    text += "    " + line;
    line.clear();
  }
  return text;
}

class ManifestTest : public ::testing::Test {
 protected:
  // Writes a manifest; its path.
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  testing_folder::TempFolder folder_;
};

}  // namespace meshtrain::cli
