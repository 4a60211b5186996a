// The figures of a run's epochs, however many, and what of them a page shows. Pure; used by one
// thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/report/curve.h"

namespace meshtrain::report {

struct EpochFigures {
  int64_t epoch = 0;                    // from 1
  std::map<std::string, double> train;  // "loss", "accuracy", ...
  std::map<std::string, double> test;   // empty where it was not evaluated
  double seconds = 0;                   // 0: not known, of a run before this one
};

// A bounded part: its size does not grow with the number of epochs.
struct EpochSummary {
  int64_t count = 0;               // of all epochs
  int64_t every = 1;               // a row stands for so many of them
  std::vector<EpochFigures> rows;  // each `every`th epoch, the best one and the last
  int64_t best = 0;                // the number of the best epoch; 0: there is none
  bool tested = false;             // at least one was evaluated on test data
  std::map<std::string, std::vector<CurvePoint>> train, test;  // by metric, of all epochs
};

class EpochHistory {
 public:
  static constexpr int64_t kMostRows = 40;  // but for the best epoch and the last

  void Add(EpochFigures figures);  // epochs rise
  void Clear() { *this = {}; }
  const std::vector<EpochFigures>& all() const { return all_; }
  // The epoch with the least loss: of the test data where it was evaluated at all, else of the
  // training data. Null where there is none.
  const EpochFigures* best() const;
  // Takes a time that does not grow with the number of epochs.
  EpochSummary Summary() const;

 private:
  // One split: "train" or "test".
  struct Curves {
    std::map<std::string, Curve> of;  // by metric; each has a place for every epoch
    int64_t best = -1;                // index in all_
    double least_loss = 0;
  };
  void Add(Curves& to, const std::map<std::string, double>& figures, double epoch) const;

  std::vector<EpochFigures> all_;
  Curves train_, test_;
};

}  // namespace meshtrain::report
