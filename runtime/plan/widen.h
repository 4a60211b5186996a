// How devices compute with 16-bit floats when their arithmetic is that of f32.
#pragma once

#include <functional>

#include "runtime/sharding/sharding.h"

namespace meshtrain::plan {

// The op moves elements, or turns them into another type, and does not ask what they are worth.
bool MovesElements(const program::Op& op);
// A product or a convolution, which devices that are made for 16 bits compute with them and add up
// in f32.
bool IsProduct(const program::Op& op);
// The op is none of those that move elements, and has an operand or a result of 16 bits.
bool ComputesWithHalves(const program::Program& program, const program::Op& op);

// The same program in which bf16 and f16 are only moved, cast and summed between devices: every
// other op has its operands cast to f32 before it and its results rounded behind it, as if it
// computed with 16 bits and more of them on the way (of a product's or a sum's terms none is
// rounded).
//
//   %2: bf16 = mul(%0, %1)      %3: f32 = cast(%0)   %4: f32 = cast(%1)
//                               %5: f32 = mul(%3, %4)   %2: bf16 = cast(%5)
//
// `native`: what the device computes with halves by itself, adding up in f32, as products on
// devices that are made for them; empty: nothing.
//
// Kept true: numbers of values that were there before; values that stand for the same global value
// have its layout. A program without such types stays as it is. Pure.
sharding::Partitioned WidenHalves(sharding::Partitioned program,
                                  const std::function<bool(const program::Op&)>& native = {});

}  // namespace meshtrain::plan
