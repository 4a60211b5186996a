// Options that several entries of the catalogue have.
#pragma once

#include <string_view>
#include <vector>

#include "runtime/manifest/field.h"

namespace meshtrain::manifest {

// Of layers.
Field ActivationOption(const Says& says);
Field RegularizerOption(std::string_view name, std::string_view about);  // l1, l2

// Of losses.
Field Reduction();
std::vector<Field> CrossentropyOptions();  // reduction and from_logits

// Of optimizers: what every one takes, and then its own. `rate`: the learning rate that holds where
// the text gives none.
std::vector<Field> OptimizerOptions(std::string_view rate, std::vector<Field> own);
Field Beta(std::string_view name, std::string_view fallback);
Field Epsilon();
Field Momentum(const Bounds& bounds, std::string_view beside = "");
Field FirstSum();
std::vector<Field> Betas(bool epsilon);  // beta_1, beta_2, and epsilon
std::vector<Field> AdamFields();

}  // namespace meshtrain::manifest
