// Runs rows of the catalogue on given numbers, for keras_test.py, which compares what comes out
// with Keras. A case is a program as a manifest has it; it is read, checked, traced and run as a
// job's.
//
//   keras_rows             prints the rows: {"layers": {"dense": {"units": [], "padding": ["valid"...
//   keras_rows FOLDER      reads cases.json and given.safetensors there, writes results.safetensors and
//                        results.json: {CASE: "", or what went wrong}
//
// A case is {"name": "7", "kind": KIND, "program": {...}} and its numbers are named "7/...":
//
//   layer      x, y (pull), state/PATH of each weight -> y, grad/x, grad/PATH, state/PATH of what
//              changed; `training` says how. The gradients are of sum(result * y) and the penalties.
//   loss       x (predictions), y (labels) -> each, value, grad/x
//   metric     x/I, y/I of batch I -> figure/NAME over all batches, each example counted once
//   optimizer  x, y of the model, state/PATH of each weight, grad/STEP/PATH -> state/STEP/PATH
//   outputs    component/NAME of the data, state/PATH of each weight -> figures of a training step by
//              their names, and state/PATH behind it
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/file.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/recipe/recipe.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;
using mesh::Tensor;
using mesh::TensorType;
using nn::Parameter;
using program::Builder;
using program::Program;
using program::Value;
using program::Variable;
using Tensors = std::map<std::string, Tensor>;

constexpr int64_t kSteps = 1000;  // more than a case has

// The numbers of one case, under their names in it.
class Given {
 public:
  Given(const checkpoint::SafetensorsReader& file, std::string name)
      : file_(file), name_(std::move(name)) {}
  bool Has(const std::string& what) const {
    return file_.header().Find(name_ + "/" + what) != nullptr;
  }
  Result<Tensor> Read(const std::string& what) const { return file_.Read(name_ + "/" + what); }

 private:
  const checkpoint::SafetensorsReader& file_;
  std::string name_;
};

// A case that is being run: its program as a job has it, and a session with its states.
class Case {
 public:
  static Result<Case> Create(const Json& json, const Given& given) {
    Case made(given);
    const std::string text = json.at("program").dump();
    MT_ASSIGN_OR_RETURN(const manifest::Manifest manifest, recipe::ParseManifest(text, "case", {}));
    MT_ASSIGN_OR_RETURN(made.declared_, recipe::Declared::Create(manifest.program));
    execute::SessionOptions options;
    options.isolated = true;  // each device by itself: what layouts mean is computed
    options.threads = 1;
    MT_ASSIGN_OR_RETURN(made.session_, execute::Session::Create(std::move(options)));
    return made;
  }

  const recipe::Declared& declared() const { return *declared_; }
  const Given& given() const { return given_; }

  // For batches of these types; the first call declares the states.
  Result<recipe::Traced> Trace(const TensorType& x, const TensorType& y) { return Trace({x, y}); }
  Result<recipe::Traced> Trace(const std::vector<TensorType>& types) {
    MT_ASSIGN_OR_RETURN(recipe::Traced traced, declared_->Trace(types));
    states_ = traced.programs.States();
    for (const Parameter& state : states_) {
      if (session_->IsDeclared(state)) continue;
      MT_RETURN_IF_ERROR(session_->Declare(state, traced.layouts.states.at(state.name())));
    }
    return traced;
  }
  // Gives the states their first values: the given ones, else those that the program says.
  Status Initialize(const recipe::Traced& traced) {
    MT_ASSIGN_OR_RETURN(auto step, Load(traced.programs.init, {}));
    MT_RETURN_IF_ERROR(step->Run());
    for (const Parameter& state : states_) {
      const std::string name = "state/" + state.name();
      if (!given_.Has(name)) continue;
      MT_ASSIGN_OR_RETURN(const Tensor value, given_.Read(name));
      MT_RETURN_IF_ERROR(session_->Write(state, value));
    }
    for (const Parameter& weight : traced.programs.parameters) {
      if (given_.Has("state/" + weight.name())) continue;
      return InvalidArgument("expected a value of " + weight.name() + ", got: none");
    }
    return OkStatus();
  }

  Result<std::unique_ptr<execute::LoadedStep>> Load(
      const Program& step, std::map<std::string, mesh::Layout> inputs) const {
    std::vector<Variable> variables;
    for (const program::State& state : step.states) {
      for (const Parameter& known : states_) {
        if (known.name() == state.name) variables.push_back(known);
      }
    }
    return session_->Load(step, declared_->mesh(), variables, {.inputs = std::move(inputs)});
  }
  // Feeds, runs, and adds the outputs to `out`, under their own names.
  static Status Run(const Program& step, execute::LoadedStep& loaded, const Tensors& feed,
                    Tensors* out) {
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      MT_RETURN_IF_ERROR(loaded.Feed(i, feed.at(step.inputs[i].name)));
    }
    MT_RETURN_IF_ERROR(loaded.Run());
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      MT_ASSIGN_OR_RETURN(Tensor value, loaded.Fetch(i));
      out->insert_or_assign(step.outputs[i].name, std::move(value));
    }
    return OkStatus();
  }
  // The states that `step` changes, as "PREFIX/PATH".
  Status ReadStates(const Program& step, const std::string& prefix, Tensors* out) const {
    for (const program::State& state : step.states) {
      if (state.entry == state.exit) continue;
      for (const Parameter& known : states_) {
        if (known.name() != state.name) continue;
        MT_ASSIGN_OR_RETURN(Tensor value, session_->ReadToHost(known));
        out->insert_or_assign(prefix + "/" + state.name, std::move(value));
      }
    }
    return OkStatus();
  }

 private:
  explicit Case(const Given& given) : given_(given) {}
  Given given_;
  std::optional<recipe::Declared> declared_;
  std::unique_ptr<execute::Session> session_;
  std::vector<Parameter> states_;
};

// Penalties of weights, as a training step adds them to the loss.
Value WithPenalties(Value objective, const std::vector<Parameter>& weights) {
  for (const Parameter& weight : weights) {
    if (!weight.regularizer()) continue;
    const Value penalty = weight.regularizer()->Record(weight);
    if (penalty.valid()) objective = objective + penalty;
  }
  return objective;
}

Status RunLayer(Case& c, const Json& json, Tensors* out) {
  MT_ASSIGN_OR_RETURN(const Tensor x, c.given().Read("x"));
  MT_ASSIGN_OR_RETURN(const Tensor pull, c.given().Read("y"));
  MT_ASSIGN_OR_RETURN(const recipe::Traced traced, c.Trace(x.type(), pull.type()));
  MT_RETURN_IF_ERROR(c.Initialize(traced));
  const std::vector<Parameter>& weights = traced.programs.parameters;
  Builder b("layer");
  const Builder::Scope scope(b);
  const nn::ContextScope context(
      {.training = json.at("training").get<bool>(), .step = c.declared().recipe().step});
  std::vector<Value> wrt;
  std::vector<std::string> names;
  const Value input = b.Input("x", x.type());
  if (mesh::IsFloat(x.type().dtype)) {
    wrt.push_back(input);
    names.push_back("grad/x");
  }
  // As they are before anything is assigned.
  for (const Parameter& weight : weights) {
    if (!weight.trainable()) continue;
    wrt.push_back(b.Read(weight));
    names.push_back("grad/" + weight.name());
  }
  const Value y = (*c.declared().recipe().model)(input);
  MT_RETURN_IF_ERROR(b.status());
  const Value objective = WithPenalties(program::ReduceSum(y * b.Input("y", pull.type())), weights);
  b.Output("y", y);
  const std::vector<Value> gradients = b.Gradient(objective, std::span<const Value>(wrt));
  MT_RETURN_IF_ERROR(b.status());
  for (size_t i = 0; i < names.size(); ++i) b.Output(names[i], gradients[i]);
  MT_ASSIGN_OR_RETURN(const Program step, b.Build());
  MT_ASSIGN_OR_RETURN(auto loaded, c.Load(step, traced.layouts.inputs));
  MT_RETURN_IF_ERROR(Case::Run(step, *loaded, {{"x", x}, {"y", pull}}, out));
  return c.ReadStates(step, "state", out);
}

Status RunLoss(Case& c, Tensors* out) {
  MT_ASSIGN_OR_RETURN(const Tensor x, c.given().Read("x"));
  MT_ASSIGN_OR_RETURN(const Tensor labels, c.given().Read("y"));
  MT_ASSIGN_OR_RETURN(const recipe::Traced traced, c.Trace(x.type(), labels.type()));
  const Tensors feed = {{"x", x}, {"y", labels}};
  // What a job reports, and beside it what it takes the gradient of.
  {
    MT_ASSIGN_OR_RETURN(auto loaded, c.Load(traced.programs.eval_step, traced.layouts.inputs));
    MT_RETURN_IF_ERROR(Case::Run(traced.programs.eval_step, *loaded, feed, out));
  }
  const train::Loss& loss = c.declared().recipe().heads[0].loss;
  Builder b("loss");
  const Builder::Scope scope(b);
  const Value predictions = b.Input("x", x.type());
  const Value each = loss.PerExample(b.Input("y", labels.type()), predictions);
  MT_RETURN_IF_ERROR(b.status());
  const Value value = loss.reduction == train::LossReduction::kSum ? program::ReduceSum(each)
                                                                   : program::ReduceMean(each);
  b.Output("each", each);
  b.Output("value", value);
  b.Output("grad/x", b.Gradient(value, std::span<const Value>(&predictions, 1))[0]);
  MT_ASSIGN_OR_RETURN(const Program step, b.Build());
  MT_ASSIGN_OR_RETURN(auto loaded, c.Load(step, traced.layouts.inputs));
  return Case::Run(step, *loaded, feed, out);
}

Status RunMetric(Case& c, Tensors* out) {
  train::FigureTotals totals;
  for (int64_t i = 0; i < kSteps && c.given().Has("x/" + std::to_string(i)); ++i) {
    MT_ASSIGN_OR_RETURN(const Tensor x, c.given().Read("x/" + std::to_string(i)));
    MT_ASSIGN_OR_RETURN(const Tensor labels, c.given().Read("y/" + std::to_string(i)));
    MT_ASSIGN_OR_RETURN(const recipe::Traced traced, c.Trace(x.type(), labels.type()));
    MT_ASSIGN_OR_RETURN(auto loaded, c.Load(traced.programs.eval_step, traced.layouts.inputs));
    Tensors outputs;
    MT_RETURN_IF_ERROR(
        Case::Run(traced.programs.eval_step, *loaded, {{"x", x}, {"y", labels}}, &outputs));
    train::BatchFigures batch{.examples = x.dims()[0]};
    for (const auto& [name, value] : outputs) {
      MT_RETURN_IF_ERROR(batch.Add(name, value, traced.programs.summed));
    }
    totals.Add(batch);
  }
  for (const auto& [name, figure] : totals.Means()) {
    out->insert_or_assign("figure/" + name, Tensor::Scalar<double>(figure));
  }
  return OkStatus();
}

Status RunOptimizer(Case& c, Tensors* out) {
  MT_ASSIGN_OR_RETURN(const Tensor x, c.given().Read("x"));
  MT_ASSIGN_OR_RETURN(const Tensor y, c.given().Read("y"));
  MT_ASSIGN_OR_RETURN(const recipe::Traced traced, c.Trace(x.type(), y.type()));
  MT_RETURN_IF_ERROR(c.Initialize(traced));
  const std::vector<Parameter>& weights = traced.programs.parameters;
  Builder b("optimizer");
  const Builder::Scope scope(b);
  std::vector<Value> gradients;
  std::map<std::string, mesh::Layout> layouts;
  for (const Parameter& weight : weights) {
    gradients.push_back(b.Input(weight.name(), weight.type()));
    layouts.emplace(weight.name(), traced.layouts.states.at(weight.name()));
  }
  c.declared().recipe().optimizer->Apply(weights, gradients);
  MT_ASSIGN_OR_RETURN(const Program step, b.Build());
  MT_ASSIGN_OR_RETURN(auto loaded, c.Load(step, layouts));
  for (int64_t i = 0; i < kSteps; ++i) {
    const std::string number = std::to_string(i);
    if (!c.given().Has("grad/" + number + "/" + weights[0].name())) break;
    Tensors feed;
    for (const Parameter& weight : weights) {
      MT_ASSIGN_OR_RETURN(Tensor gradient, c.given().Read("grad/" + number + "/" + weight.name()));
      feed.emplace(weight.name(), std::move(gradient));
    }
    MT_RETURN_IF_ERROR(Case::Run(step, *loaded, feed, out));
    MT_RETURN_IF_ERROR(c.ReadStates(step, "state/" + number, out));
  }
  return OkStatus();
}

Status RunOutputs(Case& c, Tensors* out) {
  Tensors feed;
  std::vector<TensorType> types;
  for (const std::string& component : c.declared().recipe().components) {
    MT_ASSIGN_OR_RETURN(feed[component], c.given().Read("component/" + component));
    types.push_back(feed[component].type());
  }
  MT_ASSIGN_OR_RETURN(const recipe::Traced traced, c.Trace(types));
  MT_RETURN_IF_ERROR(c.Initialize(traced));
  const Program& step = traced.programs.train_step;
  MT_ASSIGN_OR_RETURN(auto loaded, c.Load(step, traced.layouts.inputs));
  MT_RETURN_IF_ERROR(Case::Run(step, *loaded, feed, out));
  return c.ReadStates(step, "state", out);
}

Result<Tensors> RunCase(const Json& json, const checkpoint::SafetensorsReader& file) {
  const Given given(file, json.at("name").get<std::string>());
  MT_ASSIGN_OR_RETURN(Case c, Case::Create(json, given));
  const std::string kind = json.at("kind");
  Tensors out;
  Status status =
      InvalidArgument("expected layer, loss, metric, optimizer or outputs, got: " + kind);
  if (kind == "layer") status = RunLayer(c, json, &out);
  if (kind == "loss") status = RunLoss(c, &out);
  if (kind == "metric") status = RunMetric(c, &out);
  if (kind == "optimizer") status = RunOptimizer(c, &out);
  if (kind == "outputs") status = RunOutputs(c, &out);
  MT_RETURN_IF_ERROR(status);
  return out;
}

Status RunAll(const std::string& folder) {
  MT_ASSIGN_OR_RETURN(const std::string text, ReadFile(folder + "/cases.json"));
  MT_ASSIGN_OR_RETURN(const auto file,
                      checkpoint::SafetensorsReader::Open(folder + "/given.safetensors"));
  Tensors all;
  Json said = Json::object();
  for (const Json& json : Json::parse(text)) {
    const std::string name = json.at("name");
    auto results = RunCase(json, *file);
    said[name] = results.ok() ? "" : results.status().message();
    if (!results.ok()) continue;
    for (auto& [what, value] : *results) all.emplace(name + "/" + what, std::move(value));
  }
  MT_RETURN_IF_ERROR(checkpoint::WriteSafetensors(folder + "/results.safetensors", all));
  return WriteFileAtomically(folder + "/results.json", said.dump());
}

// Each row's options, and the words that each takes.
Json RowsOf(const manifest::Catalogue& catalogue) {
  Json rows = Json::object();
  for (const manifest::Entry& entry : catalogue.entries) {
    Json& row = rows[std::string(entry.name)] = Json::object();
    for (const manifest::Field& option : entry.options) {
      row[std::string(option.name)] = option.words;
    }
  }
  return rows;
}

}  // namespace
}  // namespace meshtrain

int main(int argc, char** argv) {
  using namespace meshtrain;  // NOLINT: a test's tool
  if (argc == 1) {
    const Json rows = {{"layers", RowsOf(manifest::Layers())},
                       {"losses", RowsOf(manifest::Losses())},
                       {"metrics", RowsOf(manifest::Metrics())},
                       {"optimizers", RowsOf(manifest::Optimizers())},
                       {"schedules", RowsOf(manifest::Schedules())}};
    std::printf("%s\n", rows.dump().c_str());
    return 0;
  }
  if (const Status status = RunAll(argv[1]); !status.ok()) {
    std::fprintf(stderr, "keras_rows: %s\n", status.message().c_str());
    return 1;
  }
  return 0;
}
