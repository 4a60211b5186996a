// Kueue itself, as a process, in front of a real API server (scripts/kubernetes/kueue).
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "tests/integration/operator/operator_fixture.h"

namespace meshtrain::testing {

class KueueProcess {
 public:
  // Whether it was built; if not, tests skip with `why` (scripts/kubernetes/build-peers kueue).
  static bool Available(std::string* why);

  // Installs it and waits until its webhooks answer. Ends with the object.
  static std::unique_ptr<KueueProcess> Start(ApiServer& api);
  ~KueueProcess();

 private:
  KueueProcess() = default;
  std::string folder_;
  pid_t pid_ = -1;
};

}  // namespace meshtrain::testing
