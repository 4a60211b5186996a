#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::layers {
namespace {

Entry Merged(std::string_view name, std::string_view about) {
  return {.name = name, .about = about, .several_inputs = true};
}

}  // namespace

Entry Add() { return Merged("add", "The sum of its inputs."); }
Entry Subtract() { return Merged("subtract", "The first of its two inputs less the second."); }
Entry Multiply() { return Merged("multiply", "The product of its inputs, element by element."); }
Entry Average() { return Merged("average", "The mean of its inputs."); }
Entry Maximum() { return Merged("maximum", "The largest of its inputs, element by element."); }
Entry Minimum() { return Merged("minimum", "The least of its inputs, element by element."); }

}  // namespace meshtrain::manifest::layers
