// What saves a training job, and takes it up again: the only one that does. A mesh's
// (mesh_saver.h), or that of parameter servers, which write their parts themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>

#include "runtime/base/status.h"
#include "runtime/checkpoint/async.h"
#include "runtime/saving/resume.h"
#include "runtime/train/loop.h"

namespace meshtrain::trainer {

class Saver {
 public:
  virtual ~Saver() = default;
  // Puts the states, and the data's cursor, where the newest whole checkpoint has them; a damaged
  // one is logged and the one before it taken. Nothing: they have their first values. Called again
  // it rolls back.
  virtual Result<std::optional<saving::Resumed>> Resume(std::stop_token stop) = 0;
  // Called by the loop, between steps, with the states of `position`. `pinned`: the step of a
  // checkpoint that stays whatever its age. May return before it is durable.
  virtual Status Save(const train::Position& position, std::optional<int64_t> pinned) = 0;
  // What was saved last is durable; its error.
  virtual Status Wait() = 0;
  // The newest complete one of this run. Thread-safe.
  virtual std::optional<checkpoint::SaveReport> last() const = 0;
  // How many saves came to nothing. Thread-safe.
  virtual int64_t failures() const = 0;
};

}  // namespace meshtrain::trainer
