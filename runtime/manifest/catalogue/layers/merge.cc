#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::layers {

Entry Add() { return {.name = "add", .about = "The sum of its inputs.", .several_inputs = true}; }

Entry Subtract() {
  return {.name = "subtract",
          .about = "The first of its two inputs less the second.",
          .several_inputs = true};
}

Entry Multiply() {
  return {.name = "multiply",
          .about = "The product of its inputs, element by element.",
          .several_inputs = true};
}

Entry Average() {
  return {.name = "average", .about = "The mean of its inputs.", .several_inputs = true};
}

Entry Maximum() {
  return {.name = "maximum",
          .about = "The largest of its inputs, element by element.",
          .several_inputs = true};
}

Entry Minimum() {
  return {.name = "minimum",
          .about = "The least of its inputs, element by element.",
          .several_inputs = true};
}

}  // namespace meshtrain::manifest::layers
