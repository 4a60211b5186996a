// What every backend checks before it touches a buffer, and says in the same words.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device/backend.h"
#include "runtime/plan/plan.h"

namespace meshtrain::device {

// The buffers that a plan's steps take.
class PlanBuffers {
 public:
  // `devices`: that of each local rank; empty: any, where devices share memory.
  PlanBuffers(std::string_view backend, const plan::Plan& plan, size_t ranks,
              std::vector<int> devices);
  // Errors: kInvalidArgument (another number of devices or buffers, a buffer that is smaller than
  // the plan's or lies on another device).
  Status Check(std::span<const DeviceBuffers> devices) const;

 private:
  Status Fits(size_t rank, const char* what, const std::vector<Buffer*>& buffers,
              const std::vector<int64_t>& bytes) const;

  std::string backend_;
  size_t ranks_;
  std::vector<int> devices_;
  std::vector<int64_t> inputs_, states_, outputs_;  // bytes
};

// The devices that the plan's mesh names for these ranks. Errors: kInvalidArgument for one that is
// beyond `there` (0: as many as it takes).
Result<std::vector<int>> DevicesOf(std::string_view backend, const plan::Plan& plan,
                                   std::span<const int64_t> ranks, int there);

// Errors: kInvalidArgument.
Status CheckDevice(std::string_view backend, int device, int there);
Status CheckCopy(std::string_view backend, size_t want, int64_t have);
Status CheckSameType(std::string_view backend, const Buffer& from, const Buffer& to);
// Whether collectives need a communicator that is not there: those of `plan` leave the process.
Status CheckCommunicator(std::string_view backend, const plan::Plan& plan, size_t ranks,
                         const collective::Communicator* communicator);

// Errors: kUnimplemented naming a type that is not among `types`, the op that makes it, and its
// source line.
Status CheckTypes(std::string_view backend, const plan::Plan& plan,
                  std::span<const mesh::DType> types);

}  // namespace meshtrain::device
