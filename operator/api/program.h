// A job's program as the worker will read it: the same rows, without the worker.
#pragma once

#include <cstdint>
#include <vector>

#include "operator/api/training_job.h"
#include "runtime/mesh/tpu_slice.h"

namespace meshtrain::api {

// What is wrong with the job's program and what stands beside it, each with its path and, where a
// name is near, that name: "spec.program.data: unknown field `bacth`, did you mean `batch`?". Empty
// without a program. What shows only with the data stays the worker's to say.
std::vector<FieldError> ValidateProgram(const TrainingJob& job);

// The TPU slice that each process of the job's program computes on (`devices.slice`); null: none.
const mesh::TpuSlice* SliceOf(const TrainingJob& job);

// How many GPUs each process of the job's program computes on (`devices.kind: cuda`):
// `devices.count`, or all places of its mesh, since the collectives of GPUs do not leave a process.
// 0: none.
int64_t GpusOf(const TrainingJob& job);

}  // namespace meshtrain::api
