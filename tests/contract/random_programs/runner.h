// Runs a case in each of its ways through the whole pipeline and holds what comes out against the
// interpreter (tests/support/interpreter/interpreter.h), element by element and within the bound
// that the interpreter gives for this element: the bounds come from the numbers at hand, no
// tolerance is chosen. An element about which the interpreter says nothing (its bound is infinite)
// is not compared; the tally counts these, and those whose bound is so wide that a wrong element
// might pass, so that a test can hold them few.
#pragma once

#include <optional>
#include <string>

#include "tests/contract/random_programs/case.h"

namespace meshtrain::random_programs {

struct Tally {
  int64_t programs = 0;
  int64_t runs = 0;
  int64_t elements = 0;
  int64_t exact = 0;    // must be equal
  int64_t loose = 0;    // the bound is above 1e-3 of the larger of the element and 0.1
  int64_t unknown = 0;  // not compared
  std::string ToString() const;
};

// The output that Way::finite guards: the first one of a floating-point type; "" where there is
// none.
std::string GuardedOutput(const program::Program& program);

// The last step's outputs and the states after it, bounded.
Result<testing::StepResult> Want(const Case& c);
// The same from the product.
Result<testing::StepResult> Run(const Case& c, const Way& way);

// The first element that is wrong: "output `y0` f32[3] at 2: expected 0.5 within 6e-08, got: 0".
std::optional<std::string> FirstWrong(const testing::StepResult& got,
                                      const testing::StepResult& want, Tally* tally = nullptr);

struct Failure {
  Way way;
  std::string what;
};
// The first way in which the case fails: an error, or a wrong element.
std::optional<Failure> Check(const Case& c, Tally* tally = nullptr);

}  // namespace meshtrain::random_programs
