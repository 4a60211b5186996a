// The rows of the manifest as cases for tests: each field with its path, and each option of what is
// chosen by name with a program that chooses it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/manifest/field.h"
#include "runtime/manifest/node.h"

namespace meshtrain::manifest {

struct RowCase {
  std::string path;     // below `program`, "data.shuffle.seed"; or "checkpoint.keep"
  std::string context;  // YAML that the field needs beside it, merged into the program
  const Field* field = nullptr;
};
// Those with a sample.
std::vector<RowCase> AllRows();

// One document. The text must be good.
Node Parse(std::string_view yaml);
// Members of `more` go over those of `into`; maps are merged, but another model, loss or optimizer
// takes the place of the one before.
void Merge(Node* into, const Node& more);
// Puts `value` at a path such as "model[1].dense.units", making maps on the way.
void PutAt(Node* root, std::string_view path, Node value);

// A program over which every row's sample can be laid: x is f32[batch,4,4], y has 4 classes.
inline constexpr std::string_view kRowProgram = R"(
data:
  train: {idx: {images: a.gz, labels: b.gz}}
  test: {idx: {images: c.gz, labels: d.gz}}
  batch: 32
model: [flatten: {name: flat}, dense: {name: hidden, units: 8}, dense: {name: logits, units: 4}]
loss: {sparse_categorical_crossentropy: {from_logits: true}}
optimizer: sgd
metrics: [accuracy]
)";

}  // namespace meshtrain::manifest
