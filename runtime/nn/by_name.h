// What a manifest chooses by name, made of the options that it gives. A layer's maker stands in the
// layer's own file, as nn::by_name::LAYER; the layer's row (manifest/catalogue/rows.h) declares it
// and runtime/recipe calls it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/choice/choice.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/nn/parameter.h"

namespace meshtrain::nn {

using choice::Options;

// Makes a layer: `name`, "" for none, and what the text gives. The options hold their rows' bounds.
using MakeLayer = LayerPtr (*)(const std::string& name, const Options& options);

// Options that several layers have. An initializer that is not given is `fallback`.
Initializer InitializerOf(const Options& options, std::string_view name, Initializer fallback);
std::optional<Regularizer> RegularizerOf(const Options& options, std::string_view name);
ActivationKind ActivationOf(const Options& options);  // "activation"; linear

}  // namespace meshtrain::nn
