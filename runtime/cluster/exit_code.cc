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
      return kExitBadData;
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
    case StatusCode::kFailedPrecondition:
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
