#include <grpcpp/grpcpp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/rpc/grpc_internal.h"
#include "runtime/rpc/peer_error.h"

namespace meshtrain::rpc {
namespace {

constexpr size_t kMaxMessageBytes = 2048;
constexpr std::string_view kOriginDetail = "meshtrain-origin=";

constexpr const char* kJobKey = "meshtrain-job";
constexpr const char* kTimeKey = "meshtrain-time";
constexpr const char* kCallerKey = "meshtrain-caller";
constexpr const char* kNumberKey = "meshtrain-number";
constexpr const char* kProofKey = "meshtrain-proof";
constexpr const char* kProtocolKey = "meshtrain-protocol";

constexpr size_t kCallerBytes = 16;

// Twice as many digits.
std::string DrawCaller() {
  std::array<unsigned char, kCallerBytes> bytes{};
  MT_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const unsigned char byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

// "" where the caller sent none.
std::string Header(const grpc::ServerContextBase& context, const char* key) {
  const auto& all = context.client_metadata();
  const auto found = all.find(key);
  return found == all.end() ? std::string()
                            : std::string(found->second.data(), found->second.size());
}

struct Pem {
  std::string ca, certificate, key;
};

Result<Pem> ReadPem(const Security& security) {
  constexpr int64_t kMaxBytes = int64_t{1} << 20;
  Pem out;
  MT_ASSIGN_OR_RETURN(out.ca, ReadFile(security.ca_file, kMaxBytes).From(Origin::kManifest));
  MT_ASSIGN_OR_RETURN(out.certificate,
                      ReadFile(security.certificate_file, kMaxBytes).From(Origin::kManifest));
  MT_ASSIGN_OR_RETURN(out.key, ReadFile(security.key_file, kMaxBytes).From(Origin::kManifest));
  return out;
}

}  // namespace

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string_view origin = OriginOnWire(status);
  return {static_cast<grpc::StatusCode>(status.code()),
          status.message().substr(0, kMaxMessageBytes),
          origin.empty() ? std::string() : std::string(kOriginDetail) + std::string(origin)};
}

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  const std::string details = status.error_details();
  const std::string_view origin = details.starts_with(kOriginDetail)
                                      ? std::string_view(details).substr(kOriginDetail.size())
                                      : std::string_view();
  return FromPeer(status.error_code(), status.error_message(), origin);
}

Result<std::shared_ptr<grpc::Channel>> MakeChannel(const ChannelOptions& options) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (options.security.tls()) {
    MT_ASSIGN_OR_RETURN(Pem pem, ReadPem(options.security));
    credentials = grpc::SslCredentials({.pem_root_certs = std::move(pem.ca),
                                        .pem_private_key = std::move(pem.key),
                                        .pem_cert_chain = std::move(pem.certificate)});
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.max_receive_bytes));
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Also how long one attempt may take: a stopped process accepts connections (its kernel does) and
  // says nothing.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);  // 30 s by default
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  if (options.bulk) {
    for (const auto& [name, value] : BulkArguments()) arguments.SetInt(name, value);
  }
  return grpc::CreateCustomChannel("dns:///" + options.address, credentials, arguments);
}

std::span<const std::pair<const char*, int>> BulkArguments() {
  static constexpr std::array<std::pair<const char*, int>, 7> kArguments = {{
      {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, (16 << 20) - 1},
      {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 32 << 20},
      {GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 8 << 20},
      {GRPC_ARG_HTTP2_BDP_PROBE, 0},
      {GRPC_ARG_TCP_READ_CHUNK_SIZE, 4 << 20},
      {GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, 1 << 20},
      {GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 16 << 20},
  }};
  return kArguments;
}

CallSigner::CallSigner(Security security, std::string job)
    : token_(std::move(security.token)), job_(std::move(job)), caller_(DrawCaller()) {}

CallMac CallSigner::Sign(grpc::ClientContext& context, std::string_view method, TimePoint now) {
  const CallClaim claim{
      .method = std::string(method),
      .job = job_,
      .time_ms =
          std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count(),
      .caller = caller_,
      .number = ++number_};
  std::string proof = ProveClaim(token_, claim);
  context.AddMetadata(kProtocolKey, std::to_string(kProtocolVersion));
  context.AddMetadata(kJobKey, claim.job);
  context.AddMetadata(kTimeKey, std::to_string(claim.time_ms));
  context.AddMetadata(kCallerKey, claim.caller);
  context.AddMetadata(kNumberKey, std::to_string(claim.number));
  context.AddMetadata(kProofKey, proof);
  return {token_, std::move(proof), CallMac::End::kCaller};
}

CallGate::CallGate(Security security, std::string job)
    : security_(std::move(security)), job_(std::move(job)) {}

Result<CallMac> CallGate::Admit(const grpc::ServerContextBase& context, std::string_view method,
                                TimePoint now) {
  const std::string protocol = Header(context, kProtocolKey);
  if (protocol != std::to_string(kProtocolVersion)) {
    return FailedPrecondition("expected a caller that speaks protocol " +
                              std::to_string(kProtocolVersion) +
                              " (the same version of the program in every process), got: " +
                              (protocol.empty() ? "none" : protocol));
  }
  const CallClaim claim{.method = std::string(method),
                        .job = Header(context, kJobKey),
                        .time_ms = ParseInt(Header(context, kTimeKey)).value_or(0),
                        .caller = Header(context, kCallerKey),
                        .number = static_cast<uint64_t>(std::max<int64_t>(
                            ParseInt(Header(context, kNumberKey)).value_or(0), 0))};
  std::string proof = Header(context, kProofKey);
  MT_RETURN_IF_ERROR(CheckClaim(security_.token, claim, proof, job_, now));
  if (claim.caller.size() != 2 * kCallerBytes) {
    return Status(StatusCode::kPermissionDenied,
                  "the caller's claim: expected a name of " + std::to_string(2 * kCallerBytes) +
                      " digits, got: " + std::to_string(claim.caller.size()));
  }
  {
    MutexLock lock(mutex_);
    MT_RETURN_IF_ERROR(used_.Use(claim, now));
  }
  half_open_.Prove(context.peer());
  return CallMac(security_.token, std::move(proof), CallMac::End::kServer);
}

Result<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const Security& security) {
  if (!security.tls()) return grpc::InsecureServerCredentials();
  MT_ASSIGN_OR_RETURN(Pem pem, ReadPem(security));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = std::move(pem.ca);
  options.pem_key_cert_pairs.push_back({std::move(pem.key), std::move(pem.certificate)});
  return grpc::SslServerCredentials(options);
}

}  // namespace meshtrain::rpc
