// A kubeconfig, alone, cut in two at its first "---" line as two files of $KUBECONFIG, and by a
// context's name: what comes out makes a client, or a message says why not. Nothing is connected to
// and no credential plugin runs.
#include "operator/kube/config.h"
#include "operator/kube/http_client.h"
#include "tests/fuzz/fuzz.h"

using namespace meshtrain;

namespace {

void Try(const std::vector<kube::KubeconfigText>& files, std::string_view context) {
  const auto config = kube::ParseKubeconfig(files, context);
  if (!config.ok()) {
    fuzz::CheckMessage(config.status());
    return;
  }
  FUZZ_CHECK(!config->server.empty());
  FUZZ_CHECK(config->ca_file.empty() || config->ca_data.empty());
  FUZZ_CHECK(config->client_key_file.empty() || config->client_key_data.empty());
  FUZZ_CHECK(!config->exec || !config->exec->command.empty());
  const auto client = kube::NewHttpClient(*config, {}, SystemClock());
  if (!client.ok()) fuzz::CheckMessage(client.status());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(fuzz::TextOf(data, size));
  Try({{.path = "/home/me/.kube/config", .text = text}}, "");
  Try({{.path = "/home/me/.kube/config", .text = text}}, "b");
  constexpr std::string_view kCut = "\n---\n";
  const size_t cut = text.find(kCut);
  if (cut == std::string::npos) return 0;
  Try({{.path = "/one", .text = text.substr(0, cut + 1)},
       {.path = "/two", .text = text.substr(cut + kCut.size())}},
      "");
  return 0;
}
