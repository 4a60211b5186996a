#include "tests/support/fake_api.h"

#include <nlohmann/json.hpp>

#include "runtime/base/text.h"

namespace meshtrain::testing {

using kube::CallOptions;
using kube::Resource;
using kube::WatchEventType;
using nlohmann::json;

namespace {

std::string FieldOf(const json& object, const char* key) {
  return object["metadata"].value(key, "");
}

// The server ignores what an update says about these.
void KeepSystemFields(const json& old, json& next) {
  for (const char* key : {"uid", "creationTimestamp", "deletionTimestamp",
                          "deletionGracePeriodSeconds", "generation"}) {
    if (old["metadata"].contains(key)) next["metadata"][key] = old["metadata"][key];
  }
}

}  // namespace

bool MatchesSelector(const json& object, std::string_view selector) {
  if (selector.empty()) return true;
  const json labels = object["metadata"].value("labels", json::object());
  for (const std::string& term : Split(selector, ',')) {
    const size_t equals = term.find('=');
    const std::string key = term.substr(0, equals);
    if (!labels.contains(key)) return false;
    if (equals != std::string::npos && labels[key] != term.substr(equals + 1)) return false;
  }
  return true;
}

Status FakeApi::Begin(const Call& call) {
  Fault fault;
  {
    MutexLock lock(mutex_);
    calls_.push_back(call);
    fault = fault_;
  }
  return fault ? fault(call, false) : OkStatus();
}

Status FakeApi::End(const Call& call) {
  Fault fault;
  {
    MutexLock lock(mutex_);
    fault = fault_;
  }
  return fault ? fault(call, true) : OkStatus();
}

std::string FakeApi::Store(const Key& key, json object, WatchEventType type) {
  object["metadata"]["resourceVersion"] = std::to_string(++version_);
  std::string text = object.dump();
  objects_[key] = text;
  history_.push_back({version_, type, std::get<0>(key), std::get<1>(key), text});
  changed_.NotifyAll();
  return text;
}

void FakeApi::Erase(const Key& key) {
  const auto it = objects_.find(key);
  if (it == objects_.end()) return;
  json object = json::parse(it->second);
  object["metadata"]["resourceVersion"] = std::to_string(++version_);
  history_.push_back(
      {version_, WatchEventType::kDeleted, std::get<0>(key), std::get<1>(key), object.dump()});
  objects_.erase(it);
  changed_.NotifyAll();
}

Result<std::string> FakeApi::Get(const Resource& resource, std::string_view ns,
                                 std::string_view name, const CallOptions&) {
  const Call call{"get", resource.plural, std::string(ns), std::string(name), ""};
  MT_RETURN_IF_ERROR(Begin(call));
  std::string found = Peek(resource, ns, name);
  if (found.empty()) return NotFound(resource.plural + " \"" + std::string(name) + "\" not found");
  MT_RETURN_IF_ERROR(End(call));
  return found;
}

Result<std::string> FakeApi::List(const Resource& resource, const kube::ListOptions& options,
                                  const std::function<void(std::string_view item)>& on_item,
                                  const std::function<void()>&, const CallOptions&) {
  const Call call{"list", resource.plural, options.ns, "", ""};
  MT_RETURN_IF_ERROR(Begin(call));
  std::vector<std::string> found;
  int64_t version = 0;
  {
    MutexLock lock(mutex_);
    version = version_;
    for (const auto& [key, object] : objects_) {
      if (std::get<0>(key) != resource.plural) continue;
      if (!options.ns.empty() && std::get<1>(key) != options.ns) continue;
      const std::string of_name = "metadata.name=" + std::get<2>(key);
      if (!options.field_selector.empty() && options.field_selector != of_name) continue;
      if (MatchesSelector(json::parse(object), options.label_selector)) found.push_back(object);
    }
  }
  for (const std::string& object : found) on_item(object);
  MT_RETURN_IF_ERROR(End(call));
  return std::to_string(version);
}

Result<std::string> FakeApi::Version(const Resource& resource, std::string_view ns,
                                     const CallOptions&) {
  const Call call{"version", resource.plural, std::string(ns), "", ""};
  MT_RETURN_IF_ERROR(Begin(call));
  MT_RETURN_IF_ERROR(End(call));
  return std::to_string(version());
}

Status FakeApi::Watch(
    const Resource& resource, const kube::WatchOptions& options,
    const std::function<void(WatchEventType, std::string_view, std::string_view)>& on_event,
    std::stop_token stop) {
  const Call call{"watch", resource.plural, options.ns, "", ""};
  int64_t cuts = 0;  // before this call can be seen: a cut from then on is of this one too
  {
    MutexLock lock(mutex_);
    cuts = cuts_;
  }
  MT_RETURN_IF_ERROR(Begin(call));
  int64_t from = ParseInt(options.resource_version).value_or(0);
  {
    MutexLock lock(mutex_);
    if (from < compacted_) {
      return OutOfRange("too old resource version: " + options.resource_version);
    }
  }
  while (!stop.stop_requested()) {
    std::vector<Change> changes;
    {
      MutexLock lock(mutex_);
      const auto fresh = [&] {
        return cuts_ != cuts || (!history_.empty() && history_.back().version > from);
      };
      changed_.WaitFor(mutex_, stop, std::chrono::hours(1), fresh);
      if (cuts_ != cuts) return Unavailable("watch: connection cut");
      for (const Change& change : history_) {
        if (change.version > from) changes.push_back(change);
      }
    }
    for (const Change& change : changes) {
      from = change.version;
      const bool everyone = change.type == WatchEventType::kBookmark;
      if (!everyone && change.plural != resource.plural) continue;
      if (!everyone && !options.ns.empty() && change.ns != options.ns) continue;
      if (!everyone && !MatchesSelector(json::parse(change.object), options.label_selector)) {
        continue;
      }
      on_event(change.type, std::to_string(change.version), change.object);
    }
  }
  return Cancelled("watch: stopped");
}

void FakeApi::SetLog(std::string_view ns, std::string_view pod, std::string_view text) {
  MutexLock lock(mutex_);
  logs_[std::string(ns) + "/" + std::string(pod)] = text;
}

Status FakeApi::ReadLog(std::string_view ns, std::string_view pod, const kube::LogOptions&,
                        const std::function<void(std::string_view text)>& on_text,
                        std::stop_token) {
  std::string text;
  {
    MutexLock lock(mutex_);
    const auto found = logs_.find(std::string(ns) + "/" + std::string(pod));
    if (found == logs_.end()) return NotFound("pods \"" + std::string(pod) + "\": no log");
    text = found->second;
  }
  on_text(text);
  return OkStatus();
}

Result<std::string> FakeApi::Create(const Resource& resource, std::string_view ns,
                                    std::string_view body, const CallOptions& options) {
  json object = json::parse(body);
  if (FieldOf(object, "name").empty()) return InvalidArgument("metadata.name: required");
  const Call call{"create", resource.plural, std::string(ns), FieldOf(object, "name"), ""};
  MT_RETURN_IF_ERROR(Begin(call));
  std::string stored;
  {
    MutexLock lock(mutex_);
    const Key key{resource.plural, ns, FieldOf(object, "name")};
    if (objects_.contains(key)) {
      return AlreadyExists(resource.plural + " \"" + call.name + "\" already exists");
    }
    if (options.dry_run) return object.dump();
    object["metadata"]["namespace"] = ns;
    object["metadata"]["uid"] = "uid-" + std::to_string(++uids_);
    object["metadata"]["generation"] = 1;
    object["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z";
    if (resource.plural == "pods") object["status"] = {{"phase", "Pending"}};
    stored = Store(key, std::move(object), WatchEventType::kAdded);
  }
  MT_RETURN_IF_ERROR(End(call));
  return stored;
}

Result<std::string> FakeApi::Update(const Resource& resource, std::string_view ns,
                                    std::string_view name, std::string_view body,
                                    const CallOptions&) {
  json object = json::parse(body);
  const Call call{"update", resource.plural, std::string(ns), std::string(name), ""};
  MT_RETURN_IF_ERROR(Begin(call));
  std::string stored;
  {
    MutexLock lock(mutex_);
    const Key key{resource.plural, ns, name};
    const auto it = objects_.find(key);
    if (it == objects_.end()) return NotFound(resource.plural + " \"" + call.name + "\" not found");
    const json old = json::parse(it->second);
    const std::string wanted = FieldOf(object, "resourceVersion");
    if (!wanted.empty() && wanted != FieldOf(old, "resourceVersion")) {
      return Aborted("the object has been modified");
    }
    KeepSystemFields(old, object);
    object["metadata"]["namespace"] = ns;
    stored = Store(key, std::move(object), WatchEventType::kModified);
  }
  MT_RETURN_IF_ERROR(End(call));
  return stored;
}

Result<std::string> FakeApi::Patch(const Resource& resource, std::string_view ns,
                                   std::string_view name, std::string_view subresource,
                                   kube::PatchType type, std::string_view body,
                                   const CallOptions&) {
  const Call call{"patch", resource.plural, std::string(ns), std::string(name),
                  std::string(subresource)};
  MT_RETURN_IF_ERROR(Begin(call));
  std::string stored;
  {
    MutexLock lock(mutex_);
    const Key key{resource.plural, ns, name};
    const auto it = objects_.find(key);
    if (it == objects_.end()) return NotFound(resource.plural + " \"" + call.name + "\" not found");
    const json old = json::parse(it->second);
    const json patch = json::parse(body);
    json next = old;
    if (type == kube::PatchType::kJson) {
      next = old.patch(patch);
    } else {
      const json metadata = patch.value("metadata", json::object());
      if (metadata.contains("resourceVersion") &&
          metadata["resourceVersion"] != old["metadata"]["resourceVersion"]) {
        return Aborted("the object has been modified");
      }
      if (metadata.contains("uid") && metadata["uid"] != old["metadata"]["uid"]) {
        return Aborted("Precondition failed: UID in precondition");
      }
      next.merge_patch(patch);
    }
    if (subresource == "status") {
      json only_status = old;
      only_status["status"] = next.value("status", json::object());
      next = std::move(only_status);
    }
    KeepSystemFields(old, next);
    next["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"];
    if (next == old) return it->second;  // the server writes nothing, and nobody is told
    stored = Store(key, std::move(next), WatchEventType::kModified);
  }
  MT_RETURN_IF_ERROR(End(call));
  return stored;
}

Result<std::string> FakeApi::Delete(const Resource& resource, std::string_view ns,
                                    std::string_view name, const kube::DeleteOptions& options,
                                    const CallOptions&) {
  const Call call{"delete", resource.plural, std::string(ns), std::string(name), ""};
  MT_RETURN_IF_ERROR(Begin(call));
  std::string answer;
  {
    MutexLock lock(mutex_);
    const Key key{resource.plural, ns, name};
    const auto it = objects_.find(key);
    if (it == objects_.end()) return NotFound(resource.plural + " \"" + call.name + "\" not found");
    json object = json::parse(it->second);
    if (!options.uid.empty() && options.uid != FieldOf(object, "uid")) {
      return Aborted("Precondition failed: UID in precondition");
    }
    if (!options.resource_version.empty() &&
        options.resource_version != FieldOf(object, "resourceVersion")) {
      return Aborted("Precondition failed: ResourceVersion in precondition");
    }
    // A pod on a node ends gracefully: the kubelet (the test) removes it.
    const bool graceful = resource.plural == "pods" &&
                          object.value("spec", json::object()).contains("nodeName") &&
                          options.grace_seconds.value_or(30) > 0;
    // Finalizers keep it until somebody takes them away (the test: Put without, or Remove).
    const bool kept = !object["metadata"].value("finalizers", json::array()).empty();
    const int64_t grace = graceful ? options.grace_seconds.value_or(30) : 0;
    answer = it->second;
    if (!graceful && !kept) {
      Erase(key);
    } else if (object["metadata"].value("deletionGracePeriodSeconds", grace + 1) > grace) {
      object["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:35Z";
      object["metadata"]["deletionGracePeriodSeconds"] = grace;
      answer = Store(key, std::move(object), WatchEventType::kModified);
    }
  }
  MT_RETURN_IF_ERROR(End(call));
  return answer;
}

void FakeApi::Put(const Resource& resource, std::string_view text) {
  json object = json::parse(text);
  MutexLock lock(mutex_);
  const Key key{resource.plural, FieldOf(object, "namespace"), FieldOf(object, "name")};
  const auto it = objects_.find(key);
  if (FieldOf(object, "uid").empty()) {
    object["metadata"]["uid"] = it != objects_.end() ? FieldOf(json::parse(it->second), "uid")
                                                     : "uid-" + std::to_string(++uids_);
  }
  const auto type = it == objects_.end() ? WatchEventType::kAdded : WatchEventType::kModified;
  Store(key, std::move(object), type);
}

void FakeApi::Remove(const Resource& resource, std::string_view ns, std::string_view name) {
  MutexLock lock(mutex_);
  Erase({resource.plural, std::string(ns), std::string(name)});
}

std::string FakeApi::Peek(const Resource& resource, std::string_view ns,
                          std::string_view name) const {
  MutexLock lock(mutex_);
  const auto it = objects_.find({resource.plural, std::string(ns), std::string(name)});
  return it == objects_.end() ? "" : it->second;
}

std::vector<std::string> FakeApi::All(const Resource& resource) const {
  MutexLock lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [key, object] : objects_) {
    if (std::get<0>(key) == resource.plural) out.push_back(object);
  }
  return out;
}

void FakeApi::SetFault(Fault fault) {
  MutexLock lock(mutex_);
  fault_ = std::move(fault);
}

void FakeApi::CutWatches() {
  MutexLock lock(mutex_);
  ++cuts_;
  changed_.NotifyAll();
}

void FakeApi::Snapshot() {
  MutexLock lock(mutex_);
  snapshot_ = objects_;
  snapshot_version_ = version_;
}

void FakeApi::Restore() {
  MutexLock lock(mutex_);
  objects_ = snapshot_;
  version_ = snapshot_version_;
  std::erase_if(history_, [&](const Change& change)
                              MT_REQUIRES(mutex_) { return change.version > snapshot_version_; });
  ++cuts_;
  changed_.NotifyAll();
}

void FakeApi::Compact() {
  MutexLock lock(mutex_);
  compacted_ = version_;
  history_.clear();
}

void FakeApi::SendBookmarks() {
  MutexLock lock(mutex_);
  ++version_;
  history_.push_back({version_, WatchEventType::kBookmark, "", "",
                      json{{"metadata", {{"resourceVersion", std::to_string(version_)}}}}.dump()});
  changed_.NotifyAll();
}

std::vector<FakeApi::Call> FakeApi::calls() const {
  MutexLock lock(mutex_);
  return calls_;
}

void FakeApi::ForgetCalls() {
  MutexLock lock(mutex_);
  calls_.clear();
}

int64_t FakeApi::version() const {
  MutexLock lock(mutex_);
  return version_;
}

}  // namespace meshtrain::testing
