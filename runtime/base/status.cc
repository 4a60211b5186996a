#include "runtime/base/status.h"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace meshtrain {
namespace {

// In the order of Origin.
constexpr std::array<std::string_view, 9> kOriginNames = {
    "ours", "manifest", "input", "output", "peers", "stop", "numbers", "device", "api_server"};
static_assert(static_cast<size_t>(Origin::kApiServer) == kOriginNames.size() - 1);

}  // namespace

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kCancelled:
      return "CANCELLED";
    case StatusCode::kUnknown:
      return "UNKNOWN";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case StatusCode::kAborted:
      return "ABORTED";
    case StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kDataLoss:
      return "DATA_LOSS";
    case StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
  }
  return "UNKNOWN";
}

std::string_view OriginName(Origin origin) { return kOriginNames[static_cast<size_t>(origin)]; }

std::optional<Origin> ParseOrigin(std::string_view name) {
  for (size_t i = 0; i < kOriginNames.size(); ++i) {
    if (kOriginNames[i] == name) return static_cast<Origin>(i);
  }
  return std::nullopt;
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(StatusCodeName(code_)) + ": " + message_;
}

Status Status::At(std::string_view where) const {
  if (ok() || where.empty()) return *this;
  return WithMessage(std::string(where) + ": " + message_);
}

Status Status::From(Origin origin) const {
  Status out = *this;
  if (!ok() && !origin_) out.origin_ = origin;
  return out;
}

Status Status::WithCode(StatusCode code) const {
  Status out = *this;
  if (!ok()) out.code_ = code;
  return out;
}

Status Status::WithMessage(std::string message) const {
  Status out = *this;
  if (!ok()) out.message_ = std::move(message);
  return out;
}

#define MT_DEFINE_STATUS_(Name) \
  Status Name(std::string message) { return Status(StatusCode::k##Name, std::move(message)); }
MT_DEFINE_STATUS_(InvalidArgument)
MT_DEFINE_STATUS_(NotFound)
MT_DEFINE_STATUS_(AlreadyExists)
MT_DEFINE_STATUS_(FailedPrecondition)
MT_DEFINE_STATUS_(Unimplemented)
MT_DEFINE_STATUS_(Internal)
MT_DEFINE_STATUS_(Unavailable)
MT_DEFINE_STATUS_(DeadlineExceeded)
MT_DEFINE_STATUS_(DataLoss)
MT_DEFINE_STATUS_(ResourceExhausted)
MT_DEFINE_STATUS_(Aborted)
MT_DEFINE_STATUS_(OutOfRange)
MT_DEFINE_STATUS_(PermissionDenied)
MT_DEFINE_STATUS_(Cancelled)
#undef MT_DEFINE_STATUS_

namespace internal {
void DieOfBadResult(const Status& status) {
  std::fprintf(stderr, "meshtrain: value() of a Result that holds %s\n", status.ToString().c_str());
  std::abort();
}
}  // namespace internal

}  // namespace meshtrain
