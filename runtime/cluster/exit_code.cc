#include "runtime/cluster/exit_code.h"

#include "runtime/cluster/contract.h"

namespace meshtrain::cluster {

int ManifestExitCode(const Status& error) {
  switch (error.code()) {
    case StatusCode::kNotFound:
    case StatusCode::kAlreadyExists:  // there is something, but no file
      return kExitNoInput;
    case StatusCode::kInvalidArgument:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kUnimplemented:
    // Larger than what is read; no disk is written to here.
    case StatusCode::kResourceExhausted:
      return kExitBadConfig;
    case StatusCode::kInternal:
      return kExitInternal;
    default:
      return kExitIo;
  }
}

int DataExitCode(const Status& error) {
  switch (error.code()) {
    case StatusCode::kNotFound:
    case StatusCode::kAlreadyExists:  // there is something, but no file
      return kExitNoInput;
    case StatusCode::kInvalidArgument:
    case StatusCode::kDataLoss:
    // A type or format that this version does not read.
    case StatusCode::kUnimplemented:
      return kExitBadData;
    case StatusCode::kFailedPrecondition:
    // No memory for it.
    case StatusCode::kResourceExhausted:
      return kExitBadConfig;
    case StatusCode::kInternal:
      return kExitInternal;
    default:
      return kExitIo;
  }
}

int OutputExitCode(const Status& error) {
  switch (error.code()) {
    case StatusCode::kNotFound:
    case StatusCode::kPermissionDenied:
    case StatusCode::kAlreadyExists:
      return kExitCannotCreate;
    case StatusCode::kDataLoss:
      return kExitBadData;
    case StatusCode::kInvalidArgument:
    // Another program's checkpoint, or no memory for a buffer.
    case StatusCode::kFailedPrecondition:
    // A newer version's checkpoint.
    case StatusCode::kUnimplemented:
      return kExitBadConfig;
    case StatusCode::kInternal:
      return kExitInternal;
    default:
      return kExitIo;
  }
}

int JoinExitCode(const Status& error) {
  const bool refused =
      error.code() == StatusCode::kPermissionDenied || error.code() == StatusCode::kUnauthenticated;
  if (error.code() == StatusCode::kAborted) return kExitRetry;
  return refused ? kExitBadConfig : OutputExitCode(error);
}

}  // namespace meshtrain::cluster
