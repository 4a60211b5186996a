#include "runtime/rpc/security.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstdlib>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::rpc {
namespace {

constexpr int64_t kMaxTokenBytes = 4096;

// With its length in front, so that no two lists of fields give the same bytes.
void AddField(std::string& out, std::string_view field) {
  out += std::to_string(field.size());
  out += ':';
  out += field;
}

using Digest = std::array<unsigned char, CallMac::kBytes>;

Digest Hmac(const std::string& token, const std::string& text) {
  Digest out{};
  unsigned int size = 0;
  MT_CHECK(HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
                reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.data(),
                &size) != nullptr &&
           size == out.size());
  return out;
}

std::string MacOf(const std::string& token, const std::string& proof, CallMac::End sender,
                  uint64_t number, std::string_view message) {
  std::string text = "meshtrain-message-1";
  text.reserve(text.size() + proof.size() + message.size() + 64);
  AddField(text, proof);
  AddField(text, sender == CallMac::End::kCaller ? "caller" : "server");
  AddField(text, std::to_string(number));
  AddField(text, message);
  const Digest digest = Hmac(token, text);
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

Result<Security> SecurityFromEnvironment(
    const std::function<std::optional<std::string>(std::string_view name)>& environment) {
  Security out;
  if (const std::string path = environment(cluster::kEnvTokenFile).value_or(""); !path.empty()) {
    auto text = ReadFile(path, kMaxTokenBytes);
    if (!text.ok()) return text.status().At(cluster::kEnvTokenFile).From(Origin::kManifest);
    out.token = Trim(*text);
    if (out.token.empty()) {
      return InvalidArgument(std::string(cluster::kEnvTokenFile) + ": " + path +
                             ": expected a token, got: nothing")
          .From(Origin::kManifest);
    }
  }
  out.ca_file = environment(cluster::kEnvTlsCa).value_or("");
  out.certificate_file = environment(cluster::kEnvTlsCertificate).value_or("");
  out.key_file = environment(cluster::kEnvTlsKey).value_or("");
  const int given = (out.ca_file.empty() ? 0 : 1) + (out.certificate_file.empty() ? 0 : 1) +
                    (out.key_file.empty() ? 0 : 1);
  if (given != 0 && given != 3) {
    return InvalidArgument(std::string(cluster::kEnvTlsCa) + ", " +
                           std::string(cluster::kEnvTlsCertificate) + ", " +
                           std::string(cluster::kEnvTlsKey) +
                           ": expected all three or none, got: " + std::to_string(given))
        .From(Origin::kManifest);
  }
  return out;
}

std::string ProveClaim(const std::string& token, const CallClaim& claim) {
  std::string text = "meshtrain-call-2";
  AddField(text, claim.method);
  AddField(text, claim.job);
  AddField(text, std::to_string(claim.time_ms));
  AddField(text, claim.caller);
  AddField(text, std::to_string(claim.number));
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const unsigned char byte : Hmac(token, text)) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

Status CheckClaim(const std::string& token, const CallClaim& claim, std::string_view proof,
                  const std::string& job, TimePoint now) {
  // The name first: a peer of another job has another token too, and the name says more.
  if (claim.job != job) {
    return FailedPrecondition("a process of another job: expected job \"" + job + "\", got: \"" +
                              claim.job + "\"");
  }
  const std::string want = ProveClaim(token, claim);
  if (want.size() != proof.size() || CRYPTO_memcmp(want.data(), proof.data(), want.size()) != 0) {
    return Status(StatusCode::kPermissionDenied,
                  "the caller's proof does not fit the token of job \"" + job +
                      "\": expected the same token in every process (" +
                      std::string(cluster::kEnvTokenFile) + ")");
  }
  const int64_t now_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  const int64_t slack_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(kClockSlack).count();
  // The claim is proven, so its time is no stranger's; still, no arithmetic that could overflow.
  if (claim.time_ms < now_ms - slack_ms || claim.time_ms > now_ms + slack_ms) {
    return Status(StatusCode::kPermissionDenied,
                  "clocks too far apart: expected the caller's within " +
                      std::to_string(slack_ms / 1000) + " s of " + std::to_string(now_ms / 1000) +
                      " s, got: " + std::to_string(claim.time_ms / 1000));
  }
  return OkStatus();
}

CallMac::CallMac(std::string token, std::string proof, End our_end)
    : token_(std::move(token)), proof_(std::move(proof)), our_end_(our_end) {}

std::string CallMac::Sign(std::string_view message) {
  return MacOf(token_, proof_, our_end_, sent_++, message);
}

bool CallMac::Check(std::string_view message, std::string_view mac) {
  const End their_end = our_end_ == End::kCaller ? End::kServer : End::kCaller;
  const std::string want = MacOf(token_, proof_, their_end, received_, message);
  if (want.size() != mac.size() || CRYPTO_memcmp(want.data(), mac.data(), want.size()) != 0) {
    return false;
  }
  ++received_;
  return true;
}

}  // namespace meshtrain::rpc
