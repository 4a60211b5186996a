// A process's metrics, served as Prometheus text. Names begin with `meshtrain_`, are in base units,
// and counters end in
// `_total` (https://prometheus.io/docs/practices/naming). Every series carries training_job,
// replica_type and replica_index; further labels come from closed sets: never a step, a loss or a
// pod's name.
//
// Thread-safe; a handle lives as long as its Metrics.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace meshtrain::telemetry {

class Counter {
 public:
  Counter() = default;      // counts nothing
  void Add(double by = 1);  // by >= 0

 private:
  friend class Metrics;
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  prometheus::Counter* counter_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  void Set(double value);

 private:
  friend class Metrics;
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  prometheus::Gauge* gauge_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  void Observe(double value);

 private:
  friend class Metrics;
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  prometheus::Histogram* histogram_ = nullptr;
};

struct ReplicaLabels {
  std::string training_job;  // its name; its namespace is a label of whoever scrapes the process
  std::string replica_type;  // "chief", "worker", "ps", "evaluator"
  int replica_index = 0;
};

class Metrics {
 public:
  using Labels = std::map<std::string, std::string>;

  explicit Metrics(const ReplicaLabels& labels);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The same name and labels give the same series. A name against the rules above is our bug and
  // ends the process.
  Counter AddCounter(const std::string& name, const std::string& help, const Labels& more = {});
  Gauge AddGauge(const std::string& name, const std::string& help, const Labels& more = {});
  // `bounds`: rising upper bounds of the buckets.
  Histogram AddHistogram(const std::string& name, const std::string& help,
                         const std::vector<double>& bounds, const Labels& more = {});

  // The Prometheus text format, version 0.0.4.
  std::string Text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::telemetry
