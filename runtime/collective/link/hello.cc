#include "runtime/collective/link/hello.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstring>

#include "runtime/base/check.h"
#include "runtime/wire/bytes.h"

namespace meshtrain::collective {

using wire::Get;
using wire::Put;

namespace {

constexpr uint32_t kMagic = 0x4948544d;  // "MTHI"
constexpr uint16_t kVersion = 1;

}  // namespace

std::string_view LinkKindName(LinkKind kind) {
  switch (kind) {
    case LinkKind::kData:
      return "data";
    case LinkKind::kControl:
      return "control";
    case LinkKind::kMemory:
      return "memory";
  }
  return "?";
}

void EncodeHello(const Hello& hello, HelloBytes& out) {
  std::byte* at = out.data();
  Put(kMagic, at);
  Put(kVersion, at + 4);
  Put(static_cast<uint16_t>(hello.kind), at + 6);
  Put(hello.incarnation, at + 8);
  Put(hello.from, at + 16);
  Put(hello.to, at + 20);
  Put(hello.group, at + 24);
  std::memcpy(at + 32, hello.nonce.data(), kNonceBytes);
}

Result<Hello> DecodeHello(const HelloBytes& bytes) {
  const std::byte* at = bytes.data();
  const uint16_t kind = Get<uint16_t>(at + 6);
  if (Get<uint32_t>(at) != kMagic || Get<uint16_t>(at + 4) != kVersion || kind < 1 || kind > 3) {
    return FailedPrecondition("expected the hello of a peer of this version, got: other bytes");
  }
  Hello hello;
  hello.kind = static_cast<LinkKind>(kind);
  hello.incarnation = Get<uint64_t>(at + 8);
  hello.from = Get<uint32_t>(at + 16);
  hello.to = Get<uint32_t>(at + 20);
  hello.group = Get<uint64_t>(at + 24);
  std::memcpy(hello.nonce.data(), at + 32, kNonceBytes);
  return hello;
}

Proof Prove(std::string_view token, Role role, const HelloBytes& hello, const Nonce& nonce) {
  std::string text = role == Role::kAcceptor ? "acceptor" : "connector";
  text.append(reinterpret_cast<const char*>(hello.data()), hello.size());
  text.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  Proof proof;
  unsigned int length = 0;
  const unsigned char* made = HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                   reinterpret_cast<unsigned char*>(proof.data()), &length);
  MT_CHECK(made != nullptr && length == kProofBytes);
  return proof;
}

bool SameProof(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), kProofBytes) == 0;
}

std::string EncodeVerdict(StatusCode code, std::string_view text) {
  text = text.substr(0, kVerdictMaxText);
  std::byte header[kVerdictHeaderBytes];
  Put(static_cast<uint32_t>(code), header);
  Put(static_cast<uint32_t>(text.size()), header + 4);
  return std::string(reinterpret_cast<const char*>(header), sizeof header) + std::string(text);
}

Result<VerdictHeader> DecodeVerdictHeader(std::string_view bytes) {
  const uint32_t code = Get<uint32_t>(bytes.data()), length = Get<uint32_t>(bytes.data() + 4);
  if (code > static_cast<uint32_t>(StatusCode::kUnauthenticated) || length > kVerdictMaxText) {
    return FailedPrecondition("expected a verdict on our hello, got: other bytes");
  }
  return VerdictHeader{static_cast<StatusCode>(code), length};
}

}  // namespace meshtrain::collective
