// How the processes of a job know each other: the job's token, and optionally certificates.
//
// Every call of our gRPC services carries a claim (the job's name, the method, who calls for the
// how manieth time, and when) and its proof, HMAC-SHA256(token, claim). The token itself never
// travels. Kept true:
//   - A server checks the proof as the call begins, before it takes a byte of a message. Who does not
//     know the token (another job, a scanner, a pod of a neighbour) is refused there.
//   - A claim is good for one call: a server remembers those that it has seen (used_claims.h), so
//     whoever reads the wire cannot repeat one. (A server that was restarted remembers nothing from
//     before; the claim's time bounds that to kClockSlack.)
//   - Messages are bound to the claim of their call (CallMac): none can be moved to another call, nor
//     be repeated, nor change its place among those of its call. That holds for what a server answers
//     too. Beside the messages stand, under a checksum alone, the tensors of parameter servers.
// Nothing of it hides what is sent. Where the network itself is not trusted, use certificates: with
// them every byte of a call is sealed (TLS), and so are the collectives' links (wire/tls.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::rpc {

struct Security {
  std::string token;  // the job's shared secret; "": none, then only the job's name is compared
  // Paths of PEM files: all three, or none. Both sides of a call show a certificate that `ca_file`
  // signed; a server's must be valid for the host names in TF_CONFIG.
  std::string ca_file;
  std::string certificate_file;
  std::string key_file;

  bool tls() const { return !ca_file.empty(); }
};

// From the variables kEnvTokenFile, kEnvTlsCa, kEnvTlsCertificate and kEnvTlsKey; reads the token's
// file, at most 4 kB, without the white space around it. Errors: kInvalidArgument (some of the
// three certificate files, or an empty token); kNotFound, kPermissionDenied naming the file. All of
// Origin::kManifest.
Result<Security> SecurityFromEnvironment(
    const std::function<std::optional<std::string>(std::string_view name)>& environment);

// How far the clocks of two hosts may differ, and how long a proof is good for.
inline constexpr Duration kClockSlack = std::chrono::minutes(5);

// What a caller says about itself. Travels as metadata beside `proof`.
struct CallClaim {
  std::string method;   // "/meshtrain.v1.Rendezvous/Attend"
  std::string job;      // "namespace/name"
  int64_t time_ms = 0;  // the caller's wall clock, since 1970
  std::string caller;   // drawn at random by whoever signs, for all its calls to one server
  uint64_t number = 0;  // of this call among those of `caller`: 1, 2, ...
};

// The proof in hexadecimal digits. Pure.
std::string ProveClaim(const std::string& token, const CallClaim& claim);
// Errors: kFailedPrecondition (another job's name), kPermissionDenied (wrong token, clocks too far
// apart). Takes equally long for every wrong proof.
Status CheckClaim(const std::string& token, const CallClaim& claim, std::string_view proof,
                  const std::string& job, TimePoint now);

// Seals the messages of one call, at one of its ends: HMAC-SHA256 with the job's token over the
// call's proof, who sends, how many that end has sent before, and the message. Sign is for one
// thread at a time, and so is Check; the two may run side by side.
class CallMac {
 public:
  enum class End : uint8_t { kCaller, kServer };
  static constexpr size_t kBytes = 32;

  CallMac() = default;  // of no call: assign one before use
  // `proof`: of the call's claim, in hexadecimal digits.
  CallMac(std::string token, std::string proof, End our_end);

  // Of the next message that we send: kBytes.
  std::string Sign(std::string_view message);
  // Whether `mac` is that of the next message that the other end sends. One that is not counts for
  // nothing: the same may be asked again.
  bool Check(std::string_view message, std::string_view mac);

 private:
  std::string token_;
  std::string proof_;
  End our_end_ = End::kCaller;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

}  // namespace meshtrain::rpc
