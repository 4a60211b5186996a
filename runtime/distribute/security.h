// How the processes of a job know each other: the job's token, and optionally certificates.
//
// Every call of our gRPC services carries the job's name and a proof that the caller knows the
// token: HMAC-SHA256(token, method, job, time, nonce). The token itself never travels. The proof
// keeps out who does not know the token: another job, a scanner, a pod of a neighbour. It says
// nothing about what is sent after it, does not hide it, does not prove the server to the client,
// and whoever reads the wire may repeat a call for kClockSlack. Where the network itself is not
// trusted, use certificates: with them both sides prove themselves and every byte of a call is
// sealed (TLS). The collectives' own links are not encrypted.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::distribute {

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
// three certificate files, or an empty token); kNotFound, kPermissionDenied naming the file.
Result<Security> SecurityFromEnvironment(
    const std::function<std::optional<std::string>(std::string_view name)>& environment);

// How far the clocks of two hosts may differ, and how long a proof is good for.
inline constexpr Duration kClockSlack = std::chrono::minutes(5);

// What a caller says about itself. Travels as metadata beside `proof`.
struct CallClaim {
  std::string method;   // "/meshtrain.v1.Rendezvous/Attend"
  std::string job;      // "namespace/name"
  int64_t time_ms = 0;  // the caller's wall clock, since 1970
  std::string nonce;    // makes two claims differ
};

// The proof in hexadecimal digits. Pure.
std::string ProveClaim(const std::string& token, const CallClaim& claim);
// Errors: kFailedPrecondition (another job's name), kPermissionDenied (wrong token, clocks too far
// apart). Takes equally long for every wrong proof.
Status CheckClaim(const std::string& token, const CallClaim& claim, std::string_view proof,
                  const std::string& job, TimePoint now);

}  // namespace meshtrain::distribute
