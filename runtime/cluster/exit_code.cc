#include "runtime/cluster/exit_code.h"

#include "runtime/cluster/contract.h"

namespace meshtrain::cluster {
namespace {

int OfManifest(StatusCode code) {
  switch (code) {
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

int OfInput(StatusCode code) {
  switch (code) {
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

int OfOutput(StatusCode code) {
  switch (code) {
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

int OfPeers(StatusCode code) {
  switch (code) {
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kCancelled:
    case StatusCode::kAborted:  // all start again, with what they have in common
      return kExitRetry;
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnauthenticated:
      return kExitBadConfig;
    default:
      return OfOutput(code);
  }
}

int OfApiServer(StatusCode code, int signal) {
  switch (code) {
    case StatusCode::kNotFound:
      return kExitNoInput;
    case StatusCode::kInternal:
      return kExitInternal;
    case StatusCode::kUnknown:
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kDataLoss:
    case StatusCode::kOutOfRange:
      return kExitIo;
    case StatusCode::kCancelled:
      return 128 + signal;
    default:
      return kExitBadConfig;
  }
}

}  // namespace

int ExitCodeOf(const Status& status, int signal) {
  if (status.ok()) return kExitDone;
  switch (status.origin().value_or(Origin::kOurs)) {
    case Origin::kManifest:
      return OfManifest(status.code());
    case Origin::kInput:
      return OfInput(status.code());
    case Origin::kPeers:
    case Origin::kDevice:
      return OfPeers(status.code());
    case Origin::kApiServer:
      return OfApiServer(status.code(), signal);
    case Origin::kStop:
      return 128 + signal;
    case Origin::kNumbers:
      return kExitNotFinite;
    case Origin::kOurs:
    case Origin::kOutput:
      break;
  }
  return OfOutput(status.code());
}

}  // namespace meshtrain::cluster
