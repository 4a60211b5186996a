// Options that several entries of the catalogue have.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/manifest/field.h"

namespace meshtrain::manifest {

// Of layers.
Field ActivationOption(const Says& says);
Field RegularizerOption(std::string_view name, std::string_view about);  // l1, l2

// Of a weight: `name` is "WEIGHT_layout", with `_` for the dots of WEIGHT's path in its layer.
Field LayoutOption(std::string_view name, std::string_view about, std::string_view sample);

// `own`, and then what every layer with a kernel and a bias takes. `kernel_layout`: a sample.
std::vector<Field> WithKernelAndBias(std::vector<Field> own, std::string_view kernel_layout);
// Entry::weights of such a layer.
template <int kKernelRank>
std::vector<std::pair<std::string, int>> KernelAndBias(const Options& options) {
  std::vector<std::pair<std::string, int>> weights = {{"kernel", kKernelRank}};
  if (options.Bool("use_bias", true)) weights.emplace_back("bias", 1);
  return weights;
}

// Of losses.
Field Reduction();
std::vector<Field> CrossentropyOptions();  // reduction and from_logits

// Of metrics.
Field FigureNameOption(std::string_view sample, std::string_view context = "");
Field ClassOption();  // of those that ask which examples are positive

// Of sources: images, labels and labels_as, where `sample` is the name of a file.
std::vector<Field> FilesAndLabels(std::string_view images, std::string_view labels,
                                  std::string_view sample);

// Of optimizers: what every one takes, and then its own. `rate`: the learning rate that holds where
// the text gives none.
std::vector<Field> OptimizerOptions(std::string_view rate, std::vector<Field> own);
Field Beta(std::string_view name, std::string_view fallback);
Field Epsilon();
Field Momentum();
Field FirstSum();
std::vector<Field> Betas(bool epsilon);  // beta_1, beta_2, and epsilon
std::vector<Field> AdamFields();

}  // namespace meshtrain::manifest
