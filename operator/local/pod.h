// A pod's body, as operator/reconcile makes it, read as one process to start; and the texts in it
// that are different on one machine. Pure.
//
// Of a pod only the training container runs here, without image, volumes and network of its own:
// what is lost by that is named in `left_out`, and what cannot be had at all is an error.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::local {

struct Container {
  std::string name;
  std::vector<std::string> command;  // empty: the image's own entry point
  std::vector<std::string> args;
  // In the order of the text, names and values; references to the pod's own fields are filled in,
  // $(NAME) is not.
  std::vector<std::pair<std::string, std::string>> environment;
  std::string working_directory;      // empty: the image's
  std::string restart_policy;         // of the pod
  Duration grace{};                   // terminationGracePeriodSeconds
  int32_t http_port = 0;              // the port meshtrain-http, 0 where absent
  std::vector<std::string> left_out;  // "spec.initContainers", "volume data"
};

// Reads the whole object. Errors: kFailedPrecondition for a variable that only a cluster could fill
// in.
Result<Container> ReadPod(std::string_view body);

// Kubernetes' expansion: $(NAME) becomes the variable's value where there is one, $$ becomes $, all
// else stays.
std::string Expand(std::string_view text, const std::map<std::string, std::string>& variables);

// A container's variables as its process sees them: each value may use those before it, the last of
// a name wins.
std::map<std::string, std::string> Expand(
    const std::vector<std::pair<std::string, std::string>>& environment);

// `json` with each of its strings that is a key of `hosts` replaced by that value; all else,
// spelling included, as it was. {"worker":["mnist-worker-0.mnist.ml.svc:2222"]} becomes
// {"worker":["127.0.0.1:17171"]}.
std::string WithHosts(std::string_view json, const std::map<std::string, std::string>& hosts);

}  // namespace meshtrain::local
