#include "runtime/strategy/variables.h"

#include <set>
#include <utility>

#include "runtime/train/programs.h"

namespace meshtrain::strategy {

using mesh::Tensor;
using program::Variable;

namespace {

Status CheckType(const nn::Parameter& parameter, const Tensor& value) {
  return CheckTypeOf(parameter.name(), parameter.type(), value.type());
}

}  // namespace

Status CheckTypeOf(const std::string& name, const mesh::TensorType& expected,
                   const mesh::TensorType& got) {
  if (got == expected) return OkStatus();
  return InvalidArgument("variable `" + name + "`: expected " + expected.ToString() +
                         ", got: " + got.ToString());
}

Status OfAnotherScope(const Variable& variable) {
  return FailedPrecondition("variable `" + (variable.valid() ? variable.name() : std::string("?")) +
                            "`: expected one that was made under this strategy's scope");
}

void Variables::Add(const nn::Parameter& parameter) {
  if (by_key_.contains(parameter.key())) return;
  auto held =
      std::make_unique<Held>(Held{.parameter = parameter.Unheld(), .holders = parameter.holders()});
  if (auto given = given_.extract(parameter.name())) held->first = std::move(given.mapped());
  by_key_.emplace(parameter.key(), held.get());
  held_.push_back(std::move(held));
}

Result<Variables::Held*> Variables::Find(const Variable& variable) {
  const auto it = by_key_.find(variable.key());
  if (it != by_key_.end()) return it->second;
  return OfAnotherScope(variable);
}

std::vector<Variable> Variables::KnownOf(std::span<const Variable> variables) const {
  std::vector<Variable> known;
  for (const Variable& v : variables) {
    if (by_key_.contains(v.key())) known.push_back(v);
  }
  return known;
}

Status Variables::Declare(const nn::Parameter& parameter, Home home, const Layouts& layouts) {
  if (home == Home::kReplicas) {
    return replicas_->IsDeclared(parameter) ? OkStatus() : replicas_->Declare(parameter);
  }
  MT_ASSIGN_OR_RETURN(execute::Session * session, o_.session());
  if (session->IsDeclared(parameter)) return OkStatus();
  if (const auto given = layouts.find(parameter.name()); given != layouts.end()) {
    return session->Declare(parameter, given->second);
  }
  if (o_.layout) {
    MT_ASSIGN_OR_RETURN(const mesh::Layout layout, o_.layout(parameter));
    return session->Declare(parameter, layout);
  }
  return session->Declare(parameter, mesh::Layout::Replicated(o_.mesh, parameter.type().rank()));
}

Status Variables::Begin(std::span<Held* const> held, Home home, const Layouts& layouts) {
  if (home == Home::kReplicas && replicas_ == nullptr) {
    MT_ASSIGN_OR_RETURN(replicas_, o_.replicas());
  }
  std::vector<nn::Parameter> unset;
  for (Held* h : held) {
    MT_RETURN_IF_ERROR(Declare(h->parameter, home, layouts));
    if (h->home != Home::kNone) continue;
    if (h->first) {
      MT_RETURN_IF_ERROR(CheckType(h->parameter, *h->first));
      MT_RETURN_IF_ERROR(WriteAt(*h, home, *h->first));
      h->first.reset();
    } else {
      unset.push_back(h->parameter);
    }
    h->home = home;
  }
  if (unset.empty()) return OkStatus();
  MT_ASSIGN_OR_RETURN(const program::Program init,
                      train::BuildInit(unset, o_.seed.value_or(nn::RandomSeed())));
  const std::vector<Variable> variables(unset.begin(), unset.end());
  if (home == Home::kMesh) {
    MT_ASSIGN_OR_RETURN(execute::Session * session, o_.session());
    MT_ASSIGN_OR_RETURN(const auto step, session->Load(init, o_.mesh, variables, {}));
    return step->Run();
  }
  MT_RETURN_IF_ERROR(replicas_->RunOnFirst(init, variables));
  return Equalize(variables);
}

Status Variables::DeclareOnMesh(std::span<const nn::Parameter> parameters, const Layouts& layouts) {
  for (const nn::Parameter& parameter : parameters) {
    MT_ASSIGN_OR_RETURN(Held * held, Find(parameter));
    MT_RETURN_IF_ERROR(Declare(parameter, Home::kMesh, layouts));
    held->home = Home::kMesh;
    held->retired = false;
    held->first.reset();
  }
  return OkStatus();
}

Status Variables::Move(std::span<const Variable> variables, Home home, const Layouts& layouts) {
  std::vector<Held*> held;
  bool all_there = true;
  for (const Variable& v : variables) {
    MT_ASSIGN_OR_RETURN(Held * h, Find(v));
    h->retired = false;
    all_there = all_there && h->home == home;
    held.push_back(h);
  }
  if (all_there) return OkStatus();
  MT_RETURN_IF_ERROR(Begin(held, home, layouts));
  for (Held* h : held) {
    if (h->home == home) continue;
    MT_ASSIGN_OR_RETURN(const Tensor value, ReadAt(*h));
    MT_RETURN_IF_ERROR(WriteAt(*h, home, value));
    h->home = home;
  }
  return OkStatus();
}

Status Variables::ToReplicas(std::span<const Variable> variables) {
  return Move(variables, Home::kReplicas, {});
}
Status Variables::ToMesh(std::span<const Variable> variables, const Layouts& layouts) {
  return Move(variables, Home::kMesh, layouts);
}

Result<execute::Session*> Variables::InOneSession(std::span<const Variable> variables) {
  bool with_replicas = true;
  for (const Variable& v : variables) {
    MT_ASSIGN_OR_RETURN(const Held* held, Find(v));
    with_replicas = with_replicas && held->home == Home::kReplicas;
  }
  if (with_replicas && replicas_ != nullptr) return &replicas_->session(0);
  MT_RETURN_IF_ERROR(ToMesh(variables));
  return o_.session();
}

Result<Tensor> Variables::ReadAt(const Held& held) {
  if (held.home == Home::kReplicas) return replicas_->Read(0, held.parameter);
  MT_ASSIGN_OR_RETURN(execute::Session * session, o_.session());
  return session->ReadToHost(held.parameter);
}

Status Variables::WriteAt(const Held& held, Home home, const Tensor& value) {
  if (home == Home::kReplicas) return replicas_->WriteAll(held.parameter, value);
  MT_ASSIGN_OR_RETURN(execute::Session * session, o_.session());
  return session->Write(held.parameter, value);
}

Result<Tensor> Variables::Read(const Variable& variable) {
  MT_ASSIGN_OR_RETURN(Held * held, Find(variable));
  if (held->home == Home::kNone) {
    if (held->first) return *held->first;
    MT_RETURN_IF_ERROR(Begin({&held, 1}, first_home(), {}));
  }
  return ReadAt(*held);
}

Result<std::vector<Tensor>> Variables::Copies(const Variable& variable) {
  MT_ASSIGN_OR_RETURN(Tensor first, Read(variable));
  MT_ASSIGN_OR_RETURN(const Held* held, Find(variable));
  std::vector<Tensor> copies = {std::move(first)};
  if (held->home != Home::kReplicas) return copies;
  for (int64_t i = 1; i < replicas_->count(); ++i) {
    MT_ASSIGN_OR_RETURN(Tensor copy, replicas_->Read(i, variable));
    copies.push_back(std::move(copy));
  }
  return copies;
}

Status Variables::Assign(const Variable& variable, const Tensor& value) {
  MT_ASSIGN_OR_RETURN(Held * held, Find(variable));
  MT_RETURN_IF_ERROR(CheckType(held->parameter, value));
  if (held->home == Home::kNone) {
    held->first = value;
    return OkStatus();
  }
  return WriteAt(*held, held->home, value);
}

Status Variables::Equalize() {
  std::vector<Variable> all;
  for (const auto& h : held_) {
    if (h->home == Home::kReplicas) all.push_back(h->parameter);
  }
  return Equalize(all);
}

Status Variables::Equalize(std::span<const Variable> variables) {
  if (replicas_ == nullptr || replicas_->count() == 1) return OkStatus();
  for (const Variable& v : variables) {
    MT_ASSIGN_OR_RETURN(const Tensor value, replicas_->Read(0, v));
    for (int64_t i = 1; i < replicas_->count(); ++i) {
      MT_RETURN_IF_ERROR(replicas_->Write(i, v, value));
    }
  }
  return OkStatus();
}

void Variables::Retire(const Variable& variable) {
  if (const auto it = by_key_.find(variable.key()); it != by_key_.end()) it->second->retired = true;
}

std::vector<Variable> Variables::Valued() const {
  std::vector<Variable> valued;
  for (const auto& h : held_) {
    if (h->counts() && (h->home != Home::kNone || h->first)) valued.push_back(h->parameter);
  }
  return valued;
}

Status Variables::Give(std::map<std::string, Tensor> values) {
  for (const auto& h : held_) {
    const auto value = values.find(h->parameter.name());
    if (!h->counts() || value == values.end()) continue;
    MT_RETURN_IF_ERROR(CheckType(h->parameter, value->second));
  }
  std::set<std::string> taken;
  for (const auto& h : held_) {
    const auto value = values.find(h->parameter.name());
    if (!h->counts() || value == values.end()) continue;
    MT_RETURN_IF_ERROR(Assign(h->parameter, value->second));
    taken.insert(value->first);
  }
  std::erase_if(values, [&](const auto& value) { return taken.contains(value.first); });
  given_ = std::move(values);
  return OkStatus();
}

}  // namespace meshtrain::strategy
