#include "runtime/distribute/security.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstdlib>

#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::distribute {
namespace {

constexpr int64_t kMaxTokenBytes = 4096;

// With its length in front, so that no two lists of fields give the same bytes.
void AddField(std::string& out, std::string_view field) {
  out += std::to_string(field.size());
  out += ':';
  out += field;
}

}  // namespace

Result<Security> SecurityFromEnvironment(
    const std::function<std::optional<std::string>(std::string_view name)>& environment) {
  Security out;
  if (const std::string path = environment(cluster::kEnvTokenFile).value_or(""); !path.empty()) {
    auto text = ReadFile(path, kMaxTokenBytes);
    if (!text.ok()) return text.status().At(cluster::kEnvTokenFile);
    out.token = Trim(*text);
    if (out.token.empty()) {
      return InvalidArgument(std::string(cluster::kEnvTokenFile) + ": " + path +
                             ": expected a token, got: nothing");
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
                           ": expected all three or none, got: " + std::to_string(given));
  }
  return out;
}

std::string ProveClaim(const std::string& token, const CallClaim& claim) {
  std::string text = "meshtrain-call-1";
  AddField(text, claim.method);
  AddField(text, claim.job);
  AddField(text, std::to_string(claim.time_ms));
  AddField(text, claim.nonce);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  MT_CHECK(HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
                reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
                &size) != nullptr);
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(2 * size);
  for (unsigned int i = 0; i < size; ++i) {
    out += kDigits[digest[i] >> 4];
    out += kDigits[digest[i] & 15];
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

}  // namespace meshtrain::distribute
