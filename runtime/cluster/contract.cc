#include "runtime/cluster/contract.h"

#include <cstdio>

#include "runtime/base/text.h"

namespace meshtrain::cluster {

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kChief:
      return "chief";
    case Role::kWorker:
      return "worker";
    case Role::kPs:
      return "ps";
    case Role::kEvaluator:
      return "evaluator";
  }
  return "?";
}

std::optional<Role> ParseRole(std::string_view text) {
  const std::string lower = ToLower(text);
  if (lower == "master") return Role::kChief;
  for (const Role role : kRoles) {
    if (lower == RoleName(role)) return role;
  }
  return std::nullopt;
}

std::string ToString(TaskId task) {
  return std::string(RoleName(task.role)) + "-" + std::to_string(task.index);
}

std::string PodName(std::string_view job, TaskId task) {
  return std::string(job) + "-" + ToString(task);
}

std::string ShortHash(std::string_view text) {
  uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  char out[9];
  std::snprintf(out, sizeof(out), "%08x", hash);
  return out;
}

std::string TokenSecretName(std::string_view job, std::string_view uid) {
  return std::string(job) + "-token-" + ShortHash(uid);
}
std::string TlsSecretName(std::string_view job, std::string_view uid) {
  return std::string(job) + "-tls-" + ShortHash(uid);
}
std::string CheckpointClaimName(std::string_view job, std::string_view uid) {
  return std::string(job) + "-checkpoint-" + ShortHash(uid);
}

ExitClass ClassifyExit(int code) {
  if (code == kExitDone) return ExitClass::kDone;
  if (code == kExitIo) return ExitClass::kRetryable;
  if (code == kExitAborted || code == kExitSegfault) return ExitClass::kPermanent;
  return code >= 128 ? ExitClass::kRetryable : ExitClass::kPermanent;
}

}  // namespace meshtrain::cluster
