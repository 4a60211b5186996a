// The first words on a connection between two processes of a job. Each proves to the other that it
// knows the job's token, without sending it, and says for which incarnation and as whom it comes.
// Pure.
//
//   connector -> acceptor   Hello (64 bytes)
//   acceptor -> connector   Challenge: its nonce, and HMAC-SHA256(token, "acceptor" hello nonce)
//   connector -> acceptor   HMAC-SHA256(token, "connector" hello nonce); zeros if the acceptor's
//                           was wrong
//   acceptor -> connector   Verdict: a status; when it accepts, its text is the name of its memory
//                           socket
// On a memory connection the third and the fourth carry a file descriptor each: the memory that the
// sender shares. Nonces are fresh for each connection, so an overheard conversation proves nothing
// later.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace meshtrain::collective {

inline constexpr size_t kHelloBytes = 64, kNonceBytes = 32, kProofBytes = 32;
inline constexpr size_t kChallengeBytes = kNonceBytes + kProofBytes;
inline constexpr size_t kVerdictHeaderBytes = 8, kVerdictMaxText = 1024;

using Nonce = std::array<std::byte, kNonceBytes>;
using Proof = std::array<std::byte, kProofBytes>;
using HelloBytes = std::array<std::byte, kHelloBytes>;

enum class LinkKind : uint8_t { kData = 1, kControl = 2, kMemory = 3 };
std::string_view LinkKindName(LinkKind kind);

struct Hello {
  LinkKind kind = LinkKind::kData;
  uint64_t incarnation = 0;
  uint32_t from = 0, to = 0;  // process indices
  uint64_t group =
      0;  // digest of what both must have alike: names, hosts, whether memory is shared
  Nonce nonce{};
};

void EncodeHello(const Hello& hello, HelloBytes& out);
// Errors: kFailedPrecondition (no hello of ours, or another version's).
Result<Hello> DecodeHello(const HelloBytes& bytes);

enum class Role : uint8_t { kAcceptor, kConnector };
Proof Prove(std::string_view token, Role role, const HelloBytes& hello, const Nonce& nonce);
bool SameProof(const Proof& a, const Proof& b);  // in constant time

// Longer texts are cut.
std::string EncodeVerdict(StatusCode code, std::string_view text);
struct VerdictHeader {
  StatusCode code = StatusCode::kOk;
  size_t length = 0;
};
// Errors: kFailedPrecondition.
Result<VerdictHeader> DecodeVerdictHeader(std::string_view bytes);

}  // namespace meshtrain::collective
