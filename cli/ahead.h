// `meshtrain plan --target`: what a job's programs need of a device that is not there.
#pragma once

#include <iosfwd>
#include <vector>

#include "cli/manifest.h"
#include "runtime/base/status.h"
#include "runtime/device/pjrt/tpu_target.h"

namespace meshtrain::cli {

// Every program that the job runs, compiled by libtpu for the target, and a table of what each
// takes beside what its plan says. `declared` is of `manifest`, which was read for devices of
// kTpu. Errors: Declared::Trace's, device::CompileAhead's.
Status PrintAhead(const mesh::TpuSlice& target, const manifest::Manifest& manifest,
                  const recipe::Declared& declared, const DataBatches& batches, std::ostream& out);

}  // namespace meshtrain::cli
