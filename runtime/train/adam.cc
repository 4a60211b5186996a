// Adam and its relatives.
#include <algorithm>

#include "runtime/train/optimizer.h"

namespace meshtrain::train {

using program::Assign;
using program::AssignAdd;
using program::AssignSub;

namespace {

// As the weight's type; no op where it is that already.
Value As(const Value& scalar, const Parameter& weight) {
  return scalar.dtype() == weight.type().dtype ? scalar : program::Cast(scalar, weight.type().dtype);
}

class AdamOptimizer final : public Optimizer {
 public:
  AdamOptimizer(AdamOptions o, std::string_view kind) : Optimizer(o.common), o_(o), kind_(kind) {}
  std::string_view kind() const override { return kind_; }

 protected:
  void Begin() override {
    const Value t = StepNumber();
    alpha_ = learning_rate() * program::Sqrt(1.0 - program::Pow(o_.beta_2, t)) / (1.0 - program::Pow(o_.beta_1, t));
  }
  void Update(const Parameter& w, const Value& g) override {
    const Parameter m = Slot("m", w);
    const Parameter v = Slot("v", w);
    AssignAdd(m, (g - m) * (1 - o_.beta_1));
    AssignAdd(v, (program::Square(g) - v) * (1 - o_.beta_2));
    Parameter scale = v;
    if (o_.amsgrad) {
      scale = Slot("v_max", w);
      Assign(scale, program::Maximum(scale, v));
    }
    AssignSub(w, m * As(alpha_, w) / (program::Sqrt(scale) + o_.epsilon));
  }

 private:
  AdamOptions o_;
  std::string_view kind_;
  Value alpha_;
};

class AdamPaperOptimizer final : public Optimizer {
 public:
  explicit AdamPaperOptimizer(AdamPaperOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "adam_paper"; }

 protected:
  void Begin() override {
    const Parameter t = Scalar("t", DType::kF64, 1);
    correction_1_ = 1.0 - program::Pow(o_.beta_1, t);
    correction_2_ = 1.0 - program::Pow(o_.beta_2, t);
  }
  void Update(const Parameter& w, const Value& g) override {
    const Parameter m = Slot("m", w);
    const Parameter v = Slot("v", w);
    Assign(m, o_.beta_1 * m + (1 - o_.beta_1) * g);
    Assign(v, o_.beta_2 * v + (1 - o_.beta_2) * program::Square(g));
    const Value m_hat = m / As(correction_1_, w);  // the new m and v: reading after assigning
    const Value v_hat = v / As(correction_2_, w);
    AssignSub(w, learning_rate() * (m_hat / (program::Sqrt(v_hat) + o_.epsilon)));
  }
  void End() override { AssignAdd(Scalar("t", DType::kF64, 1), 1); }

 private:
  AdamPaperOptions o_;
  Value correction_1_;
  Value correction_2_;
};

class AdamaxOptimizer final : public Optimizer {
 public:
  explicit AdamaxOptimizer(AdamLikeOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "adamax"; }

 protected:
  void Begin() override { alpha_ = learning_rate() / (1.0 - program::Pow(o_.beta_1, StepNumber())); }
  void Update(const Parameter& w, const Value& g) override {
    const Parameter m = Slot("m", w);
    const Parameter u = Slot("u", w);
    AssignAdd(m, (g - m) * (1 - o_.beta_1));
    Assign(u, program::Maximum(o_.beta_2 * u, program::Abs(g)));
    AssignSub(w, As(alpha_, w) * m / (u + o_.epsilon));
  }

 private:
  AdamLikeOptions o_;
  Value alpha_;
};

// Dozat 2016, with Keras' schedule of the momentum: beta_1 * (1 - 0.5 * 0.96^t).
class NadamOptimizer final : public Optimizer {
 public:
  explicit NadamOptimizer(AdamLikeOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "nadam"; }

 protected:
  void Begin() override {
    const Value t = StepNumber();
    const Value u = o_.beta_1 * (1.0 - 0.5 * program::Pow(0.96, t));
    const Value u_next = o_.beta_1 * (1.0 - 0.5 * program::Pow(0.96, t + 1.0));
    const Parameter product = Scalar("u_product", DType::kF64, 1);
    Assign(product, product * u);
    momentum_ = u_next / (1.0 - product * u_next);
    gradient_ = (1.0 - u) / (1.0 - product);
    correction_2_ = 1.0 - program::Pow(o_.beta_2, t);
  }
  void Update(const Parameter& w, const Value& g) override {
    const Parameter m = Slot("m", w);
    const Parameter v = Slot("v", w);
    AssignAdd(m, (g - m) * (1 - o_.beta_1));
    AssignAdd(v, (program::Square(g) - v) * (1 - o_.beta_2));
    const Value m_hat = As(momentum_, w) * m + As(gradient_, w) * g;
    const Value v_hat = v / As(correction_2_, w);
    AssignSub(w, m_hat * learning_rate() / (program::Sqrt(v_hat) + o_.epsilon));
  }

 private:
  AdamLikeOptions o_;
  Value momentum_;
  Value gradient_;
  Value correction_2_;
};

// Chen et al. 2023: the sign of an average.
class LionOptimizer final : public Optimizer {
 public:
  explicit LionOptimizer(LionOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "lion"; }

 protected:
  void Update(const Parameter& w, const Value& g) override {
    const Parameter m = Slot("m", w);
    AssignSub(w, learning_rate() * program::Sign(m * o_.beta_1 + g * (1 - o_.beta_1)));
    Assign(m, m * o_.beta_2 + g * (1 - o_.beta_2));
  }

 private:
  LionOptions o_;
};

}  // namespace

std::unique_ptr<Optimizer> Adam(AdamOptions options) { return std::make_unique<AdamOptimizer>(options, "adam"); }
std::unique_ptr<Optimizer> AdamW(AdamOptions options) {
  if (!options.common.weight_decay) options.common.weight_decay = 0.004;
  return std::make_unique<AdamOptimizer>(options, "adamw");
}
std::unique_ptr<Optimizer> AdamPaper(AdamPaperOptions options) {
  return std::make_unique<AdamPaperOptimizer>(options);
}
std::unique_ptr<Optimizer> Adamax(AdamLikeOptions options) { return std::make_unique<AdamaxOptimizer>(options); }
std::unique_ptr<Optimizer> Nadam(AdamLikeOptions options) { return std::make_unique<NadamOptimizer>(options); }
std::unique_ptr<Optimizer> Lion(LionOptions options) { return std::make_unique<LionOptimizer>(options); }

}  // namespace meshtrain::train
