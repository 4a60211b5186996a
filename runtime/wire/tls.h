// Mutual TLS over a socket that never blocks: TLS 1.3, both sides show a certificate of one
// authority, and who connects checks the host's name as well.
//
//   handshake   Handshake() until it is kDone; between, wait for what it says
//   then        Send and Receive as over the socket itself: what fits, what is there
//
// Kept true: no call waits; a closed peer raises no signal; what the peer sent is checked as TLS
// does, so that bytes that were changed on the way are an error and never data. Keys are renewed
// long before the cipher's limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

struct ssl_ctx_st;  // OpenSSL's

namespace meshtrain::wire {

// Paths of PEM files.
struct TlsFiles {
  std::string ca;           // one certificate or several; a peer's must be signed by one of them
  std::string certificate;  // ours, with those between it and the authority behind it
  std::string key;          // its private key
};

// One process's certificate and whom it trusts. Thread-safe.
class TlsContext {
 public:
  // Errors, naming the file: ReadFile's; kInvalidArgument for what is no PEM, a key that does not
  // belong to the certificate, a certificate that has expired or that the authority did not sign.
  static Result<std::shared_ptr<const TlsContext>> Create(const TlsFiles& files);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsStream;
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

// One connection. For one thread at a time.
class TlsStream {
 public:
  // Over `fd`, which stays the caller's and outlives the stream.
  // Of the side that connected: `host`, a name or a numeric address, is what the peer's certificate
  // must be valid for.
  static std::unique_ptr<TlsStream> Connect(std::shared_ptr<const TlsContext> context, int fd,
                                            const std::string& host);
  // Of the side that listens: the peer's certificate may bear any name.
  static std::unique_ptr<TlsStream> Accept(std::shared_ptr<const TlsContext> context, int fd);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  enum class Advance : uint8_t { kDone, kWantsRead, kWantsWrite };
  // Errors: kUnauthenticated (a certificate that is not trusted, has expired or bears another name,
  // the peer's or, by the peer's word, ours; the message says which), kUnavailable (the connection
  // ended, or the other side speaks no TLS).
  Result<Advance> Handshake();

  // Takes what there is room for; the bytes that were taken, 0: none now. -1: error().
  // What was taken is on its way only when unsent() is false: Flush until then.
  int64_t Send(const void* data, size_t bytes);
  // False: error().
  bool Flush();
  bool unsent() const;

  // Up to `bytes` of what has come. 0: nothing yet, and then nothing is held back: the socket says
  // when more is there; -1: error(); -2: the peer closed.
  int64_t Receive(void* data, size_t bytes);

  // Of the call that gave -1 or false.
  const Status& error() const { return error_; }

 private:
  struct Impl;
  explicit TlsStream(std::unique_ptr<Impl> impl);
  Status Failure(int result, bool handshake);

  std::unique_ptr<Impl> impl_;
  Status error_;
};

}  // namespace meshtrain::wire
