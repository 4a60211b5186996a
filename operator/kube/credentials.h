// Who we are, kept fresh: a token file is read again every minute, an exec plugin is run again
// before its credential expires or when the server refused it.
#pragma once

#include <memory>
#include <string>

#include "operator/kube/config.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace meshtrain::kube {

struct Credential {
  std::string authorization;  // value of the header, "" = none
  // PEM text; a change makes new connections necessary.
  std::string certificate;
  std::string key;

  friend bool operator==(const Credential&, const Credential&) = default;
};

// Thread-safe.
class Credentials {
 public:
  Credentials(ClientConfig config, Clock& clock);

  // Blocks while a plugin runs (at most a minute). Errors: kUnauthenticated with the plugin's own
  // words.
  Result<Credential> Current();

  // The server answered 401 to this credential: the next Current() fetches anew if it still is the
  // current one.
  void Refused(const Credential& credential);

 private:
  Result<Credential> Fetch(TimePoint now) MT_REQUIRES(mutex_);

  const ClientConfig config_;
  Clock& clock_;
  Mutex mutex_;
  bool have_ MT_GUARDED_BY(mutex_) = false;
  Credential current_ MT_GUARDED_BY(mutex_);
  TimePoint fetch_again_ MT_GUARDED_BY(mutex_);
};

// The status of an ExecCredential. `expires` is TimePoint::max() where it names no end.
struct ExecCredential {
  std::string token, certificate, key;
  TimePoint expires;
};
Result<ExecCredential> ParseExecCredential(std::string_view json, std::string_view api_version);

// Runs the plugin with KUBERNETES_EXEC_INFO set, standard input closed and standard error passed
// through. One that has not answered and ended within `timeout` is killed.
Result<ExecCredential> RunExecPlugin(const ExecPlugin& plugin, const ClientConfig& cluster,
                                     Duration timeout);

}  // namespace meshtrain::kube
