#include "runtime/telemetry/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <string_view>

#include "runtime/base/check.h"

namespace meshtrain::telemetry {
namespace {

bool IsGoodName(std::string_view name, bool counter) {
  return name.starts_with("meshtrain_") && name.ends_with("_total") == counter &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  Labels common;
};

Metrics::Metrics(const ReplicaLabels& labels) : impl_(std::make_unique<Impl>()) {
  impl_->common = {{"training_job", labels.training_job},
                   {"replica_type", labels.replica_type},
                   {"replica_index", std::to_string(labels.replica_index)}};
}

Metrics::~Metrics() = default;

Counter Metrics::AddCounter(const std::string& name, const std::string& help, const Labels& more) {
  MT_CHECK(IsGoodName(name, true));
  auto& family = prometheus::BuildCounter()
                     .Name(name)
                     .Help(help)
                     .Labels(impl_->common)
                     .Register(impl_->registry);
  return Counter(&family.Add(more));
}

Gauge Metrics::AddGauge(const std::string& name, const std::string& help, const Labels& more) {
  MT_CHECK(IsGoodName(name, false));
  auto& family = prometheus::BuildGauge()
                     .Name(name)
                     .Help(help)
                     .Labels(impl_->common)
                     .Register(impl_->registry);
  return Gauge(&family.Add(more));
}

Histogram Metrics::AddHistogram(const std::string& name, const std::string& help,
                                const std::vector<double>& bounds, const Labels& more) {
  MT_CHECK(IsGoodName(name, false) && std::is_sorted(bounds.begin(), bounds.end()));
  auto& family = prometheus::BuildHistogram()
                     .Name(name)
                     .Help(help)
                     .Labels(impl_->common)
                     .Register(impl_->registry);
  return Histogram(&family.Add(more, bounds));
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

void Counter::Add(double by) {
  if (counter_ != nullptr) counter_->Increment(by);
}
void Gauge::Set(double value) {
  if (gauge_ != nullptr) gauge_->Set(value);
}
void Histogram::Observe(double value) {
  if (histogram_ != nullptr) histogram_->Observe(value);
}

}  // namespace meshtrain::telemetry
