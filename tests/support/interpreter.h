// An oracle for programs: naive loops in double precision, one element at a time, written from the
// ops' definitions and sharing no code with any backend. Results are rounded to the op's element
// type, reductions once at their end.
//
// A partitioned program is run for all devices of its mesh in lock step, and nothing that the
// contract leaves undefined is kind: what pads uneven shards is NaN (odd numbers in integers), a
// pending input is cut into unequal parts at random, and copies that should agree are compared.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/tensor.h"
#include "runtime/program/program.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain::testing {

// Elements in row-major order, each a number of `type.dtype`.
struct Array {
  mesh::TensorType type;
  std::vector<double> at;
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

// One step of a whole program. Errors: kInvalidArgument for a missing or ill-typed input;
// kUnimplemented for an op that the interpreter does not know, naming it.
Result<StepResult> Interpret(const program::Program& program, const StepInput& input);

// One step on every device of the mesh: whole tensors in and out. `seed` decides how pending inputs
// are cut. Errors: as above; kInternal when devices that should hold copies differ, naming the
// value.
Result<StepResult> Interpret(const sharding::Partitioned& partitioned, const StepInput& input,
                             uint64_t seed = 0);

// What each device of the layout's mesh holds of `whole` (padding and pending parts as above), and
// the inverse, which compares copies and reduces what is pending.
std::vector<Array> Cut(const Array& whole, const mesh::Layout& layout, uint64_t seed = 0);
Result<Array> Join(const std::vector<Array>& parts, const mesh::Layout& layout,
                   const mesh::Dims& global_dims);

// Where a device stands; a default one is the only device.
struct Standpoint {
  const mesh::Mesh* mesh = nullptr;
  int64_t rank = 0;
};
// One op that is no collective, on one device. `types` are the results'. Errors: kUnimplemented.
Result<std::vector<Array>> EvaluateOp(const program::Op& op,
                                      const std::vector<const Array*>& operands,
                                      const std::vector<mesh::TensorType>& types,
                                      const Standpoint& standpoint);

// Element i of the result is element i + shift of `x` where that is inside, else `fill`.
Array Window(const Array& x, const mesh::TensorType& type, const mesh::Dims& shift, double fill);

// Element `index` of the stream that stateless_uniform, stateless_normal,
// stateless_truncated_normal or dropout_mask draw, before scaling (interpreter_random.cc).
struct RandomKey {
  uint32_t key[2];
  uint32_t counter[4];
};
RandomKey KeyOfSeed(int64_t seed0, int64_t seed1);
double UniformAt(const RandomKey& key, mesh::DType dtype, int64_t index);
double NormalAt(const RandomKey& key, mesh::DType dtype, int64_t index);
double TruncatedNormalAt(const RandomKey& key, mesh::DType dtype, int64_t index);

// The nearest number of the type: what storing it keeps.
double RoundTo(mesh::DType dtype, double value);
// Largest |a - b| / max(1, |b|); infinite where types differ or one is NaN and the other is not.
double Difference(const Array& a, const Array& b);

}  // namespace meshtrain::testing
