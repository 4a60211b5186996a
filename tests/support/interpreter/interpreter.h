// The reference that programs are held against: naive loops, one element at a time, written from
// the ops' definitions and sharing no code with any backend. Floating-point numbers are computed in
// double precision; integers and booleans are exact over the whole range of i64.
//
// What is kept of a floating-point result is the caller's choice (Keep):
//   kRounded   the nearest number of the op's element type, reductions rounded once at their end
//   kReal      the double itself, whatever the element type: for finite differences
//   kBounded   the double itself, and beside it how far a right result may lie from it
//
// A bound (Array::error) holds for every order of adding, for fused multiplications and for every
// way of splitting the program over devices. It is made with the value, element by element: what
// the operands' errors can do to the result (the function at the ends of their intervals) plus what
// this op may round. Rounding of a sum is bounded by the sum of its terms' sizes (Array::mass), and
// is nothing at all where all terms lie on a grid on which every partial sum is a number of the
// type (Array::grid). What is done to a sum may be done to its parts before they are added
// (Array::parts), which rounds once more for each. A decision that the operands' intervals leave
// open (a comparison, floor, argmax) gives an interval that holds every outcome; what may not be
// finite, or is not defined, is unknown: its error is infinite and nothing is said about it. Worked
// example: x = 1/64 times whole numbers, y = x + x is exact, z = exp(y) is right to 2 ulp, w = z >
// 1 is exact where y is not 0.
//
// A partitioned program is run for all devices of its mesh in lock step, and nothing that the
// contract leaves undefined is kind: what pads uneven shards is NaN (odd numbers in integers), a
// pending input is cut into unequal parts at random, and copies that should agree are compared.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/tensor.h"
#include "runtime/program/program.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain::testing {

// Holds every i64 and every f64.
using Number = long double;
static_assert(std::numeric_limits<Number>::digits >= 64);

// Elements in row-major order, each a number of `type.dtype`.
struct Array {
  Array() = default;
  explicit Array(mesh::TensorType of) : type(std::move(of)), at(type.num_elements()) {}
  Array(mesh::TensorType of, std::vector<Number> elements)
      : type(std::move(of)), at(std::move(elements)) {}
  template <typename T>
  Array(mesh::TensorType of, const std::vector<T>& elements)
      : type(std::move(of)), at(elements.begin(), elements.end()) {}

  mesh::TensorType type;
  std::vector<Number> at;

  // Of a bounded evaluation; empty, and 0, otherwise.
  std::vector<double> error;  // per element: |right result - at| is at most this
  std::vector<double> mass;   // per element of a float: at least the sum of the sizes of its parts
  double grid = 0;    // of floats: every part is a multiple of this power of two; 0: of none
  int64_t parts = 1;  // of floats: how many devices may each hold a part of every element's sum
};
Array ToArray(const mesh::Tensor& tensor);
mesh::Tensor ToTensor(const Array& array);

using Arrays = std::map<std::string, Array>;

struct StepInput {
  Arrays inputs;
  Arrays states;
};
struct StepResult {
  Arrays outputs;
  Arrays states;
};

enum class Keep : uint8_t { kRounded, kReal, kBounded };

// While one lives, bounded evaluations of this thread are of what a plugin's compiler makes of a
// program (docs/numerics.md): it may add a sum's numbers one after the other, each addition
// rounding the same way, and on GPUs take a square root that is not the nearest. Without one the
// bounds are our own backends'.
class ByAPlugin {
 public:
  ByAPlugin();
  ~ByAPlugin();
  ByAPlugin(const ByAPlugin&) = delete;
  ByAPlugin& operator=(const ByAPlugin&) = delete;
};

// One step of a whole program. Errors: kInvalidArgument for a missing or ill-typed input;
// kUnimplemented for an op that the interpreter does not know, naming it.
Result<StepResult> Interpret(const program::Program& program, const StepInput& input,
                             Keep keep = Keep::kRounded);

// One step on every device of the mesh: whole tensors in and out. `seed` decides how pending inputs
// are cut. Errors: as above; kInternal when devices that should hold copies differ, naming the
// value.
Result<StepResult> Interpret(const sharding::Partitioned& partitioned, const StepInput& input,
                             uint64_t seed = 0);

// What each device of the layout's mesh holds of `whole` (padding and pending parts as above), and
// the inverse, which compares copies and reduces what is pending. Parts of a pending sum are whole
// numbers of [-2, 2], but one that holds the rest.
std::vector<Array> Cut(const Array& whole, const mesh::Layout& layout, uint64_t seed = 0);
Result<Array> Join(const std::vector<Array>& parts, const mesh::Layout& layout,
                   const mesh::Dims& global_dims);

// Where a device stands; a default one is the only device.
struct Standpoint {
  const mesh::Mesh* mesh = nullptr;
  int64_t rank = 0;
  Keep keep = Keep::kRounded;  // kBounded: of whole programs, operands bounded too
};
// One op that is no collective, on one device. `types` are the results'. Errors: kUnimplemented.
Result<std::vector<Array>> EvaluateOp(const program::Op& op,
                                      const std::vector<const Array*>& operands,
                                      const std::vector<mesh::TensorType>& types,
                                      const Standpoint& standpoint);

// `array` as a bounded evaluation takes it: its elements are what the program is given, exactly.
// `pending_parts`: of how many parts each element is the sum, when it is fed as Cut cuts it.
Array Given(Array array, int64_t pending_parts = 1);

// Element i of the result is element i + shift of `x` where that is inside, else `fill`.
Array Window(const Array& x, const mesh::TensorType& type, const mesh::Dims& shift, Number fill);

// Element `index` of the stream that stateless_uniform, stateless_normal,
// stateless_truncated_normal or dropout_mask draw, before scaling (random.cc).
struct RandomKey {
  uint32_t key[2];
  uint32_t counter[4];
};
RandomKey KeyOfSeed(int64_t seed0, int64_t seed1);
double UniformAt(const RandomKey& key, mesh::DType dtype, int64_t index);
double NormalAt(const RandomKey& key, mesh::DType dtype, int64_t index);
double TruncatedNormalAt(const RandomKey& key, mesh::DType dtype, int64_t index);

// The nearest number of the type: what storing it keeps. Integers wrap around.
Number RoundTo(mesh::DType dtype, Number value);
// Largest |a - b| / max(1, |b|); infinite where types differ or one is NaN and the other is not.
double Difference(const Array& a, const Array& b);

}  // namespace meshtrain::testing
