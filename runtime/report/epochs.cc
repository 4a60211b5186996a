#include "runtime/report/epochs.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace meshtrain::report {

void EpochHistory::Add(Curves& to, const std::map<std::string, double>& figures,
                       double epoch) const {
  for (const auto& [name, value] : figures) {
    if (to.of.contains(name)) continue;
    Curve& curve = to.of[name];
    for (const EpochFigures& before : all_) curve.AddAbsent(static_cast<double>(before.epoch));
  }
  for (auto& [name, curve] : to.of) {
    const auto found = figures.find(name);
    if (found == figures.end()) {
      curve.AddAbsent(epoch);
    } else {
      curve.Add(epoch, found->second);
    }
  }
  const auto loss = figures.find("loss");
  if (loss == figures.end() || !std::isfinite(loss->second)) return;
  if (to.best >= 0 && loss->second >= to.least_loss) return;
  to.best = static_cast<int64_t>(all_.size());
  to.least_loss = loss->second;
}

void EpochHistory::Add(EpochFigures figures) {
  const auto epoch = static_cast<double>(figures.epoch);
  Add(train_, figures.train, epoch);
  Add(test_, figures.test, epoch);
  all_.push_back(std::move(figures));
}

const EpochFigures* EpochHistory::best() const {
  const int64_t best = test_.of.empty() ? train_.best : test_.best;
  return best < 0 ? nullptr : &all_[best];
}

EpochSummary EpochHistory::Summary() const {
  const auto count = static_cast<int64_t>(all_.size());
  EpochSummary out{.count = count,
                   .every = std::max<int64_t>(1, (count + kMostRows - 1) / kMostRows),
                   .tested = !test_.of.empty()};
  const int64_t best = out.tested ? test_.best : train_.best;
  if (best >= 0) out.best = all_[best].epoch;
  // In order: the best epoch stands before the first row behind it.
  bool best_shown = best < 0;
  const auto show = [&](int64_t i) {
    if (!best_shown && best < i) out.rows.push_back(all_[best]);
    best_shown = best_shown || best <= i;
    out.rows.push_back(all_[i]);
  };
  for (int64_t i = out.every - 1; i < count; i += out.every) show(i);
  if (count % out.every != 0) show(count - 1);
  for (const auto& [name, curve] : train_.of) out.train[name] = curve.points();
  for (const auto& [name, curve] : test_.of) out.test[name] = curve.points();
  return out;
}

}  // namespace meshtrain::report
