// What an API server answers: an input is the whole answer where it begins like HTTP, else the body
// of one. It is read as a watch's stream and as a page of a list; each object goes into the store
// as what its kind says (a pod where it says none), and each job that is known then is looked at.
#include <map>

#include "operator/api/json.h"
#include "operator/control/store.h"
#include "operator/kube/http_client.h"
#include "operator/kube/json_slice.h"
#include "operator/reconcile/children.h"
#include "operator/reconcile/reconcile.h"
#include "runtime/base/text.h"
#include "tests/fuzz/answers.h"
#include "tests/support/fake_clock.h"

using namespace meshtrain;

namespace {

fuzz::Answers& Server() {
  static fuzz::Answers server;
  return server;
}

constexpr size_t kMostStatus = 8 << 10;  // docs/operator.md

void LookAtAll(const control::Store& store, TimePoint now) {
  for (const std::string& key : store.JobKeys()) {
    const auto view = store.View(key);
    FUZZ_CHECK(view.has_value());
    (void)store.Leader(key);
    (void)view->MissingNodes();
    const reconcile::Outcome outcome = reconcile::Reconcile(*view->job, view->Observe(), now);
    FUZZ_CHECK(!outcome.empty() || !outcome.rests.empty());
    int bodies = 0;
    for (const reconcile::Action& action : outcome.actions) {
      FUZZ_CHECK(!action.why.empty());
      (void)ToString(action);
      if (const auto* patch = std::get_if<reconcile::PatchStatus>(&action.write)) {
        const std::string status = api::StatusToJson(patch->status);
        FUZZ_CHECK(status.size() <= kMostStatus);
      }
      // A job may ask for thousands of pods that differ in a number.
      if (const auto* pod = std::get_if<reconcile::CreatePod>(&action.write); pod && ++bodies < 4) {
        (void)reconcile::PodBody(*view->job, {}, *pod);
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fuzz::TextOf(data, size);
  std::string answer(input);
  if (!input.starts_with("HTTP/")) {
    answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + answer;
  }
  const std::string end =
      "HTTP/1.1 200 OK\r\n\r\n{\"metadata\":{\"resourceVersion\":\"9\"},\"items\":[]}";

  testing::FakeClock clock;
  control::Store store([](const std::string&) {}, clock);
  const std::map<std::string_view, control::Sink> sinks = {
      {"TrainingJob", store.JobSink()},
      {"Pod", store.PodSink()},
      {"Service", store.ServiceSink()},
      {"PodGroup", store.PodGroupSink()},
      {"Node", store.NodeSink()},
      {"Workload", store.WorkloadSink()},
      {"ResourceFlavor", store.FlavorSink()},
      {"PriorityClass", store.PodPrioritySink()}};
  const auto sink_of = [&](std::string_view object) -> const control::Sink& {
    const auto found = sinks.find(kube::SliceString(object, {"kind"}));
    return found == sinks.end() ? sinks.at("Pod") : found->second;
  };
  const auto begin = [&] {
    for (const auto& [kind, sink] : sinks) sink.begin_list();
  };
  kube::ClientConfig config;
  config.server = "http://127.0.0.1:" + std::to_string(Server().port());
  const auto client = kube::NewHttpClient(config, {}, clock);
  FUZZ_CHECK(client.ok());

  Server().Next({answer, end});
  const Status watched = (*client)->Watch(
      kube::Pods(), {.resource_version = "1"},
      [&](kube::WatchEventType type, std::string_view version, std::string_view object) {
        sink_of(object).watched(type, ParseInt(version).value_or(0), object);
      },
      {});
  if (!watched.ok()) fuzz::CheckMessage(watched, 5000);
  LookAtAll(store, clock.Now());

  // The first page of a list; what would follow it is empty.
  Server().Next({answer, end});
  begin();
  const auto listed = (*client)->List(
      kube::Pods(), {}, [&](std::string_view item) { sink_of(item).listed(item); }, begin, {});
  if (!listed.ok()) {
    fuzz::CheckMessage(listed.status(), 5000);
    return 0;
  }
  for (const auto& [kind, sink] : sinks) sink.end_list(ParseInt(*listed).value_or(0), false);
  LookAtAll(store, clock.Now());
  return 0;
}
