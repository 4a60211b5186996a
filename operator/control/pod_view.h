// A pod's JSON -> the few fields that decisions read. The text (often 5 kB and more) is not kept.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "operator/reconcile/observed.h"
#include "runtime/base/status.h"

namespace meshtrain::control {

struct Pod {
  std::string ns;
  std::string job;  // the name of the job that it belongs to: its controller, else its label
  std::string ip;
  int32_t http_port = 0;  // the training container's meshtrain-http
  bool leader = false;
  bool node_lost = false;  // the server said, of this very pod's node, that there is none (store.h)
  reconcile::PodSeen
      seen;  // node_state is filled in from the nodes; matches_selector against the labels of `job`
  friend bool operator==(const Pod&, const Pod&) = default;
};

// Errors: kInvalidArgument for text that is no pod.
Result<Pod> ParsePod(std::string_view json);

// metadata and controller of an object of any kind.
struct Meta {
  std::string ns, name, uid, controller_uid, controller_kind, controller_name;
  int64_t version =
      0;  // resourceVersion as a number: the API server's versions grow, and compare, as numbers
  friend bool operator==(const Meta&, const Meta&) = default;
};
Result<Meta> ParseMeta(std::string_view json);

}  // namespace meshtrain::control
