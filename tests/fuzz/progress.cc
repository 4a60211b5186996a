// What a training process answers under /progress: an input is the whole answer where it begins
// like HTTP, else the body of one. It is fetched, and the job that it tells of is looked at; the
// same words are a termination message, too.
#include "operator/reconcile/progress.h"

#include "operator/api/json.h"
#include "runtime/base/log.h"
#include "runtime/telemetry/progress_fetch.h"
#include "tests/fuzz/answers.h"
#include "tests/operator/reconcile/scene.h"

using namespace meshtrain;

namespace {

constexpr size_t kMostStatus = 8 << 10;  // docs/operator.md

fuzz::Answers& Server() {
  static fuzz::Answers server;
  return server;
}

void CheckStatus(const reconcile::Scene& scene) {
  const std::string status = api::StatusToJson(scene.job.status);
  FUZZ_CHECK(status.size() <= kMostStatus);
  // What is stored is read again as it was.
  const auto again = api::FromJson(api::ToJson(scene.job));
  FUZZ_CHECK(again.ok() && api::StatusToJson(again->status) == status);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fuzz::TextOf(data, size);
  std::string answer(input);
  if (!input.starts_with("HTTP/")) answer = "HTTP/1.1 200 OK\r\n\r\n" + answer;
  Server().Next({answer});
  const auto body = telemetry::FetchProgress("127.0.0.1", Server().port(), {});
  if (!body.ok()) {
    fuzz::CheckMessage(body.status());
    return 0;
  }

  // A job whose steps are slow, so that all that is told from times is told.
  static const reconcile::Scene running = [] {
    reconcile::Scene scene(testing_support::MakeJob("mnist").Chief().Workers(2));
    scene.Running();
    scene.job.status.progress = api::ProgressStatus{.step = 7,
                                                    .observed_at = testing_support::At(10),
                                                    .advanced_at = testing_support::At(10),
                                                    .seconds_per_step = 3600};
    return scene;
  }();
  reconcile::Scene scene = running;
  for (const double at : {20.0, 100'000.0, 200'000.0}) {
    scene.seen.progress = reconcile::ParseProgress(*body, testing_support::At(at));
    scene.Look(at);
    CheckStatus(scene);
  }

  scene = running;
  reconcile::PodSeen leader =
      testing_support::EndedPod(scene.job, {cluster::Role::kChief, 0}, /*exit_code=*/1);
  leader.termination_message = body->substr(0, 4096);
  scene.Pod(leader).Look(30);
  CheckStatus(scene);
  return 0;
}
