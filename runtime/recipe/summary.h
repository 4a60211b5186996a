// A program in words, for people who look at a run. Pure.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/nn/parameter.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {

// What the manifest says, by name: model ("flatten, dense 700 relu, dense 10"), the number of its
// parameters, optimizer ("adam, learning rate 0.001"), batch, seed.
std::vector<std::pair<std::string, std::string>> Summary(const manifest::Program& program,
                                                         std::span<const nn::Parameter> parameters);

}  // namespace meshtrain::recipe
