#include "tests/contract/random_programs/runner.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <thread>

#include "runtime/collective/fabric.h"
#include "runtime/device/backend.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/execute/session.h"
#include "tests/contract/run_plan.h"

namespace meshtrain::random_programs {
namespace {

using mesh::Layout;
using mesh::Mesh;
using program::Variable;
using testing::Array;
using testing::Arrays;
using testing::StepInput;
using testing::StepResult;

constexpr auto kConnect = std::chrono::seconds(30);

device::Backend& Cpu(int threads) {
  static std::map<int, std::unique_ptr<device::Backend>> backends;
  auto& backend = backends[threads];
  if (backend == nullptr) backend = device::MakeCpuBackend({.threads = threads, .fenced = true});
  return *backend;
}

// Devices with walls; those of a plugin. As many as a mesh here may have.
constexpr int kMostDevices = 8;
Result<device::Backend*> Walled(const std::string& kind, int threads) {
  // Not among what goes when the process exits: a plugin's own goes before it.
  static auto& backends =
      *new std::map<std::pair<std::string, int>, std::unique_ptr<device::Backend>>;
  auto& backend = backends[{kind, threads}];
  if (backend == nullptr) {
    MT_ASSIGN_OR_RETURN(backend, device::BackendOf(kind, kMostDevices, threads));
  }
  return backend.get();
}

plan::Options PlanOptions(const Case& c, const Way& way) {
  plan::Options options = way.plan;
  if (way.finite) options.finite_outputs = {GuardedOutput(c.program)};
  return options;
}

Result<StepResult> RunAsPlan(const Case& c, const Way& way, const Mesh& mesh,
                             const sharding::Given& given, device::Backend* backend = nullptr) {
  if (backend == nullptr) backend = &Cpu(way.threads);
  MT_ASSIGN_OR_RETURN(auto partitioned, sharding::Shard(c.program, mesh, given));
  MT_ASSIGN_OR_RETURN(const plan::Plan plan,
                      backend->Lower(std::move(partitioned), PlanOptions(c, way)));
  int64_t beside = 0;
  device::RunOptions options{.seed = c.feed, .steps = c.steps};
  if (way.plan.overlap) options.calls_overlapped = &beside;
  return device::RunPlan(*backend, plan, testing::FeedFor(c.program, c.feed), options);
}

// What propagation chose on the mesh is given on the collapsed one, as a session does.
Result<StepResult> RunMerged(const Case& c, const Way& way) {
  MT_ASSIGN_OR_RETURN(const Mesh run_mesh, sharding::CollapseLocal(c.mesh));
  MT_ASSIGN_OR_RETURN(const auto asked, sharding::Shard(c.program, c.mesh, c.given));
  sharding::Given given;
  for (size_t i = 0; i < c.program.inputs.size(); ++i) {
    given.inputs[c.program.inputs[i].name] = sharding::OnMesh(asked.input_layouts[i], run_mesh);
  }
  for (size_t i = 0; i < c.program.states.size(); ++i) {
    given.states[c.program.states[i].name] = sharding::OnMesh(asked.state_layouts[i], run_mesh);
  }
  for (size_t i = 0; i < c.program.outputs.size(); ++i) {
    given.outputs[c.program.outputs[i].name] = sharding::OnMesh(asked.output_layouts[i], run_mesh);
  }
  return RunAsPlan(c, way, run_mesh, given);
}

Result<StepResult> RunInSession(const Case& c, const Way& way, const Mesh& mesh,
                                execute::SessionOptions options) {
  options.threads = way.threads;
  options.plan = PlanOptions(c, way);
  MT_ASSIGN_OR_RETURN(auto session, execute::Session::Create(std::move(options)));
  // The host gives whole tensors: no pending reduction.
  sharding::Given given;
  const auto add = [&](const auto& from, auto& to) -> Status {
    for (const auto& [name, layout] : from) {
      if (layout.IsPartial()) continue;
      MT_ASSIGN_OR_RETURN(const Layout here, Layout::Parse(layout.ToString(), mesh));
      to.insert_or_assign(name, here);
    }
    return OkStatus();
  };
  MT_RETURN_IF_ERROR(add(c.given.inputs, given.inputs));
  MT_RETURN_IF_ERROR(add(c.given.states, given.states));
  MT_RETURN_IF_ERROR(add(c.given.outputs, given.outputs));
  const StepInput feed = testing::FeedFor(c.program, c.feed);
  std::vector<Variable> variables;
  for (const program::State& s : c.program.states) {
    const auto& type = c.program.type(s.entry);
    variables.emplace_back(s.name, type);
    const auto layout = given.states.find(s.name);
    MT_RETURN_IF_ERROR(session->Declare(
        variables.back(),
        layout == given.states.end() ? Layout::Replicated(mesh, type.rank()) : layout->second));
    MT_RETURN_IF_ERROR(session->Write(variables.back(), testing::ToTensor(feed.states.at(s.name))));
  }
  given.states.clear();
  MT_ASSIGN_OR_RETURN(const auto step, session->Load(c.program, mesh, variables, given));
  for (size_t i = 0; i < c.program.inputs.size(); ++i) {
    MT_RETURN_IF_ERROR(step->Feed(i, testing::ToTensor(feed.inputs.at(c.program.inputs[i].name))));
  }
  for (int s = 0; s < c.steps; ++s) MT_RETURN_IF_ERROR(step->Run());
  StepResult result;
  for (size_t i = 0; i < c.program.outputs.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const mesh::Tensor value, step->Fetch(i));
    result.outputs[c.program.outputs[i].name] = testing::ToArray(value);
  }
  for (const Variable& variable : variables) {
    MT_ASSIGN_OR_RETURN(const mesh::Tensor value, session->ReadToHost(variable));
    result.states[variable.name()] = testing::ToArray(value);
  }
  return result;
}

// Where a plugin has fewer devices than the mesh (one GPU), on one without layouts.
Result<StepResult> RunOnPlugin(const Case& c, const Way& way) {
  MT_ASSIGN_OR_RETURN(device::Backend * backend, Walled("pjrt", way.threads));
  const int devices = backend->traits().devices;
  const bool fits = devices >= c.mesh.size();
  const int asked = devices < kMostDevices ? devices : kMostDevices;
  MT_ASSIGN_OR_RETURN(const Mesh mesh,
                      fits ? Result<Mesh>(c.mesh) : sharding::CollapseLocal(c.mesh));
  Case run = c;
  if (!fits) run.given = {};
  if (way.where == Where::kPjrt) return RunAsPlan(run, way, mesh, run.given, backend);
  return RunInSession(run, way, mesh, {.device_kind = "pjrt", .devices = asked});
}

// Each process is a thread of this one with a session of its own.
Result<StepResult> RunInTwoProcesses(const Case& c, const Way& way) {
  constexpr int kProcesses = 2;
  MT_ASSIGN_OR_RETURN(const Mesh mesh, c.mesh.OverProcesses(kProcesses));
  if (!sharding::CollapseLocal(mesh).ok()) return RunMerged(c, way);
  std::vector<std::unique_ptr<collective::Fabric>> fabrics;
  collective::FabricGroup group{.incarnation = 1};
  for (int p = 0; p < kProcesses; ++p) {
    MT_ASSIGN_OR_RETURN(auto fabric,
                        collective::Fabric::Create({.bind = "127.0.0.1", .token = "secret"}));
    fabrics.push_back(std::move(fabric));
    const std::string host = collective::Fabric::HostId() + std::to_string(c.feed % 2 == 0 ? 0 : p);
    group.processes.push_back(
        {"worker-" + std::to_string(p), "127.0.0.1:" + std::to_string(fabrics[p]->port()), host});
  }
  std::vector<Result<StepResult>> results(kProcesses, Result<StepResult>(Internal("not run")));
  std::vector<std::jthread> threads;
  for (int p = 0; p < kProcesses; ++p) {
    threads.emplace_back([&, p] {
      collective::FabricGroup mine = group;
      mine.process = p;
      if (const Status connected = fabrics[p]->Connect(mine, kConnect, {}); !connected.ok()) {
        results[p] = connected;
        return;
      }
      execute::SessionOptions options{.process = p};
      options.communicator =
          [&, p](const Mesh& m,
                 uint64_t hash) -> Result<std::unique_ptr<collective::Communicator>> {
        return collective::MakeProcessCommunicator(*fabrics[p], m, hash);
      };
      results[p] = RunInSession(c, way, mesh, std::move(options));
      // Errors end the other's waiting.
      if (!results[p].ok()) fabrics[p].reset();
    });
  }
  threads.clear();
  for (const auto& result : results) {
    if (!result.ok()) return result.status();
  }
  // Both must have what the first has; the caller looks at the first.
  const auto same = [](testing::Number a, testing::Number b) {
    return a == b || (std::isnan(a) && std::isnan(b));
  };
  for (const auto held : {&StepResult::outputs, &StepResult::states}) {
    for (const auto& [name, array] : (*results[0]).*held) {
      if (!std::ranges::equal(((*results[1]).*held).at(name).at, array.at, same)) {
        return Internal("two processes hold different values of `" + name + "`");
      }
    }
  }
  return results[0];
}

std::string Text(testing::Number v) {
  char text[64];
  std::snprintf(text, sizeof text, "%.21Lg", v);
  return text;
}

}  // namespace

std::string Tally::ToString() const {
  const auto percent = [&](int64_t n) {
    char text[32];
    std::snprintf(
        text, sizeof text, "%.2f %%",
        100.0 * static_cast<double>(n) / static_cast<double>(std::max<int64_t>(1, elements)));
    return std::string(text);
  };
  return std::to_string(programs) + " programs, " + std::to_string(runs) + " runs, " +
         std::to_string(elements) + " elements: " + percent(exact) + " exact, " + percent(loose) +
         " loose, " + percent(unknown) + " unknown";
}

std::string GuardedOutput(const program::Program& program) {
  const auto first = std::find_if(
      program.outputs.begin(), program.outputs.end(),
      [&](const program::Port& p) { return mesh::IsFloat(program.type(p.value).dtype); });
  return first == program.outputs.end() ? "" : first->name;
}

Result<StepResult> Want(const Case& c) {
  StepInput input = testing::FeedFor(c.program, c.feed);
  for (auto& [name, array] : input.inputs) {
    int64_t parts = 1;
    if (const auto it = c.given.inputs.find(name); it != c.given.inputs.end()) {
      for (const mesh::Partial& p : it->second.partial()) {
        if (p.reduction == mesh::Reduction::kSum) parts *= c.mesh.axis(p.axis).size;
      }
    }
    array = testing::Given(std::move(array), parts);
  }
  std::optional<testing::ByAPlugin> by_a_plugin;
  const bool of_plugin = std::any_of(c.ways.begin(), c.ways.end(), [](const Way& way) {
    return way.where == Where::kPjrt || way.where == Where::kPjrtSession;
  });
  if (of_plugin) by_a_plugin.emplace();
  StepResult result;
  for (int s = 0; s < c.steps; ++s) {
    MT_ASSIGN_OR_RETURN(result, testing::Interpret(c.program, input, testing::Keep::kBounded));
    input.states = result.states;
  }
  return result;
}

Result<StepResult> Run(const Case& c, const Way& way) {
  switch (way.where) {
    case Where::kIsolated:
      return RunAsPlan(c, way, c.mesh, c.given);
    case Where::kMerged:
      return RunMerged(c, way);
    case Where::kOne: {
      MT_ASSIGN_OR_RETURN(const Mesh one, sharding::CollapseLocal(c.mesh));
      return RunAsPlan(c, way, one, {});
    }
    case Where::kSession:
      return RunInSession(c, way, c.mesh, {});
    case Where::kIsolatedSession:
      return RunInSession(c, way, c.mesh, {.isolated = true});
    case Where::kTwoProcesses:
      return RunInTwoProcesses(c, way);
    case Where::kDiscrete: {
      MT_ASSIGN_OR_RETURN(device::Backend * backend, Walled("discrete", way.threads));
      return RunAsPlan(c, way, c.mesh, c.given, backend);
    }
    case Where::kDiscreteSession:
      return RunInSession(c, way, c.mesh, {.device_kind = "discrete"});
    case Where::kPjrt:
    case Where::kPjrtSession:
      return RunOnPlugin(c, way);
  }
  return Internal("no such way");
}

std::optional<std::string> FirstWrong(const StepResult& got, const StepResult& want, Tally* tally) {
  std::optional<std::string> wrong;
  const auto compare = [&](const char* what, const Arrays& have, const Arrays& wish) {
    for (const auto& [name, w] : wish) {
      const std::string where = std::string(what) + " `" + name + "` " + w.type.ToString();
      const auto it = have.find(name);
      if (it == have.end() || it->second.type != w.type) {
        if (!wrong) wrong = where + ": missing, or of another type";
        continue;
      }
      for (size_t i = 0; i < w.at.size(); ++i) {
        const testing::Number g = it->second.at[i];
        const double error = w.error[i];
        const auto size = static_cast<double>(std::abs(w.at[i]));
        if (tally != nullptr) {
          ++tally->elements;
          tally->exact += error == 0 ? 1 : 0;
          tally->unknown += error == HUGE_VAL ? 1 : 0;
          tally->loose += error != HUGE_VAL && error > 1e-3 * std::max(size, 0.1) ? 1 : 0;
        }
        if (error == HUGE_VAL || wrong) continue;
        if (std::abs(g - w.at[i]) <= error) continue;  // a NaN is not
        char bound[32];
        std::snprintf(bound, sizeof bound, "%.3g", error);
        wrong = where + " at " + std::to_string(i) + ": expected " + Text(w.at[i]) + " within " +
                bound + ", got: " + Text(g);
      }
    }
  };
  compare("output", got.outputs, want.outputs);
  compare("state", got.states, want.states);
  return wrong;
}

std::optional<Failure> Check(const Case& c, Tally* tally) {
  const auto want = Want(c);
  if (!want.ok()) return Failure{{}, want.status().ToString()};
  if (tally != nullptr) ++tally->programs;
  for (Way way : c.ways) {
    if (way.finite) {
      // Only where the guarded output is known to be finite.
      const auto guarded = want->outputs.find(GuardedOutput(c.program));
      way.finite = guarded != want->outputs.end() &&
                   std::none_of(guarded->second.error.begin(), guarded->second.error.end(),
                                [](double e) { return e == HUGE_VAL; });
    }
    if (tally != nullptr) ++tally->runs;
    const auto got = Run(c, way);
    if (!got.ok()) return Failure{way, got.status().ToString()};
    if (auto wrong = FirstWrong(*got, *want, tally)) return Failure{way, *std::move(wrong)};
  }
  return {};
}

}  // namespace meshtrain::random_programs
