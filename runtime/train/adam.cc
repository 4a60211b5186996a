// Adam and its relatives.
#include <map>

#include "runtime/train/optimizer.h"

namespace meshtrain::train {

using program::Assign;
using program::AssignAdd;
using program::AssignSub;

namespace {

// A scalar that all weights share, as each weight's type: cast once per type and program.
class Shared {
 public:
  void Set(const Value& scalar) {
    scalar_ = scalar;
    casts_.clear();
  }
  Value As(const Parameter& weight) {
    const DType dtype = weight.type().dtype;
    if (scalar_.dtype() == dtype) return scalar_;
    const auto [cast, is_new] = casts_.try_emplace(dtype);
    if (is_new) cast->second = program::Cast(scalar_, dtype);
    return cast->second;
  }

 private:
  Value scalar_;
  std::map<DType, Value> casts_;
};

class AdamOptimizer final : public Optimizer {
 public:
  AdamOptimizer(AdamOptions o, std::string_view kind) : Optimizer(o.common), o_(o), kind_(kind) {}
  std::string_view kind() const override { return kind_; }

 protected:
  void Begin() override {
    t_ = StepNumber();
    alphas_.clear();
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
    AssignSub(w, m * AlphaFor(w.type().dtype) / (program::Sqrt(scale) + o_.epsilon));
  }

 private:
  // In the weight's own type, as Keras does: in f32, 1 - 0.999^t is off by 5e-5 at first, and
  // Keras' losses with it.
  Value AlphaFor(DType dtype) {
    const auto [alpha, is_new] = alphas_.try_emplace(dtype);
    if (is_new) {
      const Value t = dtype == t_.dtype() ? t_ : program::Cast(t_, dtype);
      alpha->second = learning_rate() * program::Sqrt(1.0 - program::Pow(o_.beta_2, t)) /
                      (1.0 - program::Pow(o_.beta_1, t));
    }
    return alpha->second;
  }

  AdamOptions o_;
  std::string_view kind_;
  Value t_;
  std::map<DType, Value> alphas_;  // one for all weights of a type
};

class AdamPaperOptimizer final : public Optimizer {
 public:
  explicit AdamPaperOptimizer(AdamPaperOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "adam_paper"; }

 protected:
  void Begin() override {
    const Parameter t = Scalar("t", DType::kF64, 1);
    correction_1_.Set(1.0 - program::Pow(o_.beta_1, t));
    correction_2_.Set(1.0 - program::Pow(o_.beta_2, t));
  }
  void Update(const Parameter& w, const Value& g) override {
    const Parameter m = Slot("m", w);
    const Parameter v = Slot("v", w);
    Assign(m, o_.beta_1 * m + (1 - o_.beta_1) * g);
    Assign(v, o_.beta_2 * v + (1 - o_.beta_2) * program::Square(g));
    const Value m_hat = m / correction_1_.As(w);  // the new m and v: reading after assigning
    const Value v_hat = v / correction_2_.As(w);
    AssignSub(w, learning_rate() * (m_hat / (program::Sqrt(v_hat) + o_.epsilon)));
  }
  void End() override { AssignAdd(Scalar("t", DType::kF64, 1), 1); }

 private:
  AdamPaperOptions o_;
  Shared correction_1_;
  Shared correction_2_;
};

class AdamaxOptimizer final : public Optimizer {
 public:
  explicit AdamaxOptimizer(AdamLikeOptions o) : Optimizer(o.common), o_(o) {}
  std::string_view kind() const override { return "adamax"; }

 protected:
  void Begin() override {
    alpha_.Set(learning_rate() / (1.0 - program::Pow(o_.beta_1, StepNumber())));
  }
  void Update(const Parameter& w, const Value& g) override {
    const Parameter m = Slot("m", w);
    const Parameter u = Slot("u", w);
    AssignAdd(m, (g - m) * (1 - o_.beta_1));
    Assign(u, program::Maximum(o_.beta_2 * u, program::Abs(g)));
    AssignSub(w, alpha_.As(w) * m / (u + o_.epsilon));
  }

 private:
  AdamLikeOptions o_;
  Shared alpha_;
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
    momentum_.Set(u_next / (1.0 - product * u_next));
    gradient_.Set((1.0 - u) / (1.0 - product));
    correction_2_.Set(1.0 - program::Pow(o_.beta_2, t));
  }
  void Update(const Parameter& w, const Value& g) override {
    const Parameter m = Slot("m", w);
    const Parameter v = Slot("v", w);
    AssignAdd(m, (g - m) * (1 - o_.beta_1));
    AssignAdd(v, (program::Square(g) - v) * (1 - o_.beta_2));
    const Value m_hat = momentum_.As(w) * m + gradient_.As(w) * g;
    const Value v_hat = v / correction_2_.As(w);
    AssignSub(w, m_hat * learning_rate() / (program::Sqrt(v_hat) + o_.epsilon));
  }

 private:
  AdamLikeOptions o_;
  Shared momentum_;
  Shared gradient_;
  Shared correction_2_;
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

std::unique_ptr<Optimizer> Adam(AdamOptions options) {
  return std::make_unique<AdamOptimizer>(options, "adam");
}
std::unique_ptr<Optimizer> AdamW(AdamOptions options) {
  if (!options.common.weight_decay) options.common.weight_decay = 0.004;
  return std::make_unique<AdamOptimizer>(options, "adamw");
}
std::unique_ptr<Optimizer> AdamPaper(AdamPaperOptions options) {
  return std::make_unique<AdamPaperOptimizer>(options);
}
std::unique_ptr<Optimizer> Adamax(AdamLikeOptions options) {
  return std::make_unique<AdamaxOptimizer>(options);
}
std::unique_ptr<Optimizer> Nadam(AdamLikeOptions options) {
  return std::make_unique<NadamOptimizer>(options);
}
std::unique_ptr<Optimizer> Lion(LionOptions options) {
  return std::make_unique<LionOptimizer>(options);
}

}  // namespace meshtrain::train
