// Errors as values. The code decides what happens next (retry, re-read, give up), the origin whose
// error it is, and with the code what a process ends with (runtime/cluster/exit_code.h). The
// message is for people: where, what was expected, `got: X`. gRPC's codes and numbers, so they
// cross the wire unchanged.
//
// An origin is set once, where it is known: the function that opens data says kInput, the one that
// was waiting for a peer says kPeers. Whoever passes the error on adds where, never whose.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace meshtrain {

enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,   // bad spec or shape: tell the user, no retry
  kDeadlineExceeded = 4,  // back off, retry
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,     // conflict: read again, plan again
  kOutOfRange = 11,  // version gone: list again
  kUnimplemented = 12,
  kInternal = 13,     // our bug
  kUnavailable = 14,  // peer or server away: back off, retry
  kDataLoss = 15,     // checksum wrong: previous checkpoint
  kUnauthenticated = 16,
};

// "INVALID_ARGUMENT", as gRPC spells it.
std::string_view StatusCodeName(StatusCode code);

enum class Origin : uint8_t {
  kOurs,       // this program: a bug, or what its machine has not
  kManifest,   // what the user asked for: the manifest, the environment, a token
  kInput,      // data and weights that are read
  kOutput,     // checkpoints, logs and other files of the job's own, whether written or read again
  kPeers,      // another process: lost, standing still, refusing us, or at the port that is ours
  kStop,       // nothing is wrong: the process was asked to stop
  kNumbers,    // a loss, a gradient or a new value that is not finite
  kDevice,     // a device of this process that is lost: who starts anew may find it, or another
  kApiServer,  // what Kubernetes' API server answered, or that it did not
};

// "manifest"; how an origin is written where it travels between processes.
std::string_view OriginName(Origin origin);
// None for a word that is no origin of this version.
std::optional<Origin> ParseOrigin(std::string_view name);

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  // `code` must not be kOk.
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // None: nobody has said, which is as good as kOurs. None for OK.
  std::optional<Origin> origin() const { return origin_; }
  // "OK" or "INVALID_ARGUMENT: message".
  std::string ToString() const;
  // The same error with "where: " in front of its message; OK stays OK.
  Status At(std::string_view where) const;
  // The same error, of this origin; one that has an origin keeps it. OK stays OK.
  Status From(Origin origin) const;
  // The same error and origin under another code, or in other words. OK stays OK. `code` must not
  // be kOk.
  Status WithCode(StatusCode code) const;
  Status WithMessage(std::string message) const;

  // Of code and message alone: what went wrong. Whose it is, origin() says.
  friend bool operator==(const Status& a, const Status& b) {
    return a.code_ == b.code_ && a.message_ == b.message_;
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::optional<Origin> origin_;
  std::string message_;
};

inline Status OkStatus() { return {}; }
Status InvalidArgument(std::string message);
Status NotFound(std::string message);
Status AlreadyExists(std::string message);
Status FailedPrecondition(std::string message);
Status Unimplemented(std::string message);
Status Internal(std::string message);
Status Unavailable(std::string message);
Status DeadlineExceeded(std::string message);
Status DataLoss(std::string message);
Status ResourceExhausted(std::string message);
Status Aborted(std::string message);
Status OutOfRange(std::string message);
Status PermissionDenied(std::string message);
Status Cancelled(std::string message);

namespace internal {
[[noreturn]] void DieOfBadResult(const Status& status);
}

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  // Implicit, so that a function returns a value or a Status as it is.
  // NOLINTBEGIN(google-explicit-constructor)
  Result(T value) : value_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : value_(std::in_place_index<1>, std::move(status)) {
    if (std::get<1>(value_).ok()) {
      std::get<1>(value_) =
          Status(StatusCode::kInternal, "an OK status was given where a value was due");
    }
  }
  // NOLINTEND(google-explicit-constructor)

  bool ok() const { return value_.index() == 0; }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status() : std::get<1>(value_); }
  // Status::From for the error, where there is one.
  Result From(Origin origin) && {
    if (!ok()) std::get<1>(value_) = std::get<1>(value_).From(origin);
    return std::move(*this);
  }

  // The process dies with the message when there is no value: for tests and broken invariants.
  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(Checked()); }
  T& operator*() & { return Checked(); }
  const T& operator*() const& { return const_cast<Result*>(this)->Checked(); }
  T&& operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &const_cast<Result*>(this)->Checked(); }

 private:
  T& Checked() {
    if (!ok()) internal::DieOfBadResult(std::get<1>(value_));
    return std::get<0>(value_);
  }
  std::variant<T, Status> value_;
};

}  // namespace meshtrain

#define MT_CONCAT_INNER_(a, b) a##b
#define MT_CONCAT_(a, b) MT_CONCAT_INNER_(a, b)

#define MT_RETURN_IF_ERROR(expr)                                     \
  do {                                                               \
    if (::meshtrain::Status mt_status_ = (expr); !mt_status_.ok()) { \
      return mt_status_;                                             \
    }                                                                \
  } while (false)

// MT_ASSIGN_OR_RETURN(auto x, MakeX());
#define MT_ASSIGN_OR_RETURN(lhs, expr) \
  MT_ASSIGN_OR_RETURN_IMPL_(MT_CONCAT_(mt_result_, __LINE__), lhs, expr)
#define MT_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return tmp.status();             \
  lhs = std::move(*tmp)
