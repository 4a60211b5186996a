#include "runtime/membership/roster.h"

#include <algorithm>
#include <utility>

#include "runtime/base/text.h"

namespace meshtrain::membership {
namespace {

constexpr size_t kMaxNamed = 8;  // in a message

std::string Names(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < kMaxNamed; ++i) out += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMaxNamed) out += " and " + std::to_string(names.size() - kMaxNamed) + " more";
  return out;
}

std::string TaskNames(const std::vector<cluster::TaskId>& tasks) {
  std::vector<std::string> names;
  names.reserve(tasks.size());
  for (const cluster::TaskId task : tasks) names.push_back(cluster::ToString(task));
  return Names(names);
}

Status Stale(cluster::TaskId task) {
  return FailedPrecondition("stale incarnation: " + cluster::ToString(task) +
                            " has a newer process than this one");
}

}  // namespace

Roster::Roster(RosterOptions options) : options_(std::move(options)) {
  for (const cluster::TaskId task : options_.tasks) entries_.push_back({.task = task});
}

std::vector<RosterAnswer> Roster::Handle(const RosterEvent& event, Duration now) {
  Answers out;
  std::visit([&](const auto& e) { On(e, now, out); }, event);
  for (const RosterAnswer& answer : out) {
    if (const auto* end = std::get_if<End>(&answer)) ended_.insert(end->connection);
  }
  return out;
}

Roster::Entry* Roster::Attached(uint64_t connection) {
  const auto found = by_connection_.find(connection);
  return found == by_connection_.end() ? nullptr : &entries_[found->second];
}

bool Roster::joining(uint64_t connection) const {
  const auto found = by_connection_.find(connection);
  return found != by_connection_.end() && entries_[found->second].joining;
}

std::vector<double> Roster::StepSeconds() const {
  std::vector<double> seconds;
  seconds.reserve(entries_.size());
  for (const Entry& entry : entries_) seconds.push_back(entry.standing.progress.step_seconds);
  return seconds;
}

std::string Roster::Missing() const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) {
    if (entry.attached && entry.joining) continue;
    names.push_back(cluster::ToString(entry.task) + " (" +
                    (entry.attached ? "here, but does not join" : entry.absence) + ")");
  }
  return Names(names);
}

void Roster::On(const Said& event, Duration now, Answers& out) {
  if (ended_.contains(event.connection)) return;
  if (const auto* join = std::get_if<JoinMessage>(&event.message)) {
    OnJoin(event.connection, *join, now, out);
    return;
  }
  Entry* entry = Attached(event.connection);
  if (entry == nullptr) return;  // of a stream that has ended here
  entry->last_heard = now;
  if (const auto* beat = std::get_if<BeatMessage>(&event.message)) {
    OnBeat(*entry, *beat, now);
  } else {
    OnLeave(*entry, out);
  }
}

void Roster::Learn(const JoinMessage& join, Answers& out) {
  highest_reported_ = std::max(highest_reported_, join.last_incarnation);
  if (join.last_incarnation == 0 || join.last_members.size() != entries_.size()) return;
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (join.last_incarnation <= entry.known.incarnation) continue;
    entry.known = {join.last_incarnation, join.last_members[i]};
    const bool stale = entry.last_incarnation > 0 &&
                       entry.last_incarnation < entry.known.incarnation &&
                       entry.instance != entry.known.instance;
    if (!stale || !entry.attached) continue;
    const uint64_t connection = entry.newest_connection;
    Detach(entry, "replaced by a newer process", true, out);
    out.push_back(End{connection, Stale(entry.task)});
  }
}

Status Roster::Admit(const Entry& entry, uint64_t connection, const JoinMessage& join) const {
  if (entry.replaced.contains(join.instance)) return Stale(entry.task);
  if (join.last_incarnation > 0 && join.last_incarnation < entry.known.incarnation &&
      join.instance != entry.known.instance) {
    return Stale(entry.task);
  }
  if (entry.instance == join.instance && connection < entry.newest_connection) {
    return Unavailable("this process has a newer connection");
  }
  if (entry.instance == 0 || entry.instance == join.instance) return OkStatus();
  // Another process of the task was here in our time. That one is newer if it was never a member,
  // or was one later.
  if (join.last_incarnation > 0 &&
      (entry.last_incarnation == 0 || join.last_incarnation <= entry.last_incarnation)) {
    return Stale(entry.task);
  }
  if (join.last_incarnation == 0 && entry.attached) {
    return Unavailable(cluster::ToString(entry.task) +
                       ": another process of this task is here and alive");
  }
  return OkStatus();
}

void Roster::OnJoin(uint64_t connection, const JoinMessage& join, Duration now, Answers& out) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& p) { return p.task == join.task; });
  const auto refuse = [&](Status why) { out.push_back(End{connection, std::move(why)}); };
  if (found == entries_.end()) {
    return refuse(FailedPrecondition("expected one of the members " + TaskNames(options_.tasks) +
                                     ", got: " + cluster::ToString(join.task)));
  }
  if (join.expected != options_.tasks) {
    return refuse(FailedPrecondition(
        cluster::ToString(join.task) + " knows another cluster: expected the members " +
        TaskNames(options_.tasks) + ", got: " + TaskNames(join.expected)));
  }
  if (join.instance == 0 || join.last_incarnation >= kMaxIncarnation) {
    return refuse(InvalidArgument("expected an instance and an incarnation below 2^53, got: " +
                                  std::to_string(join.instance) + ", " +
                                  std::to_string(join.last_incarnation)));
  }
  Learn(join, out);
  Entry& entry = *found;
  if (const Status admitted = Admit(entry, connection, join); !admitted.ok()) {
    return refuse(admitted);
  }

  if (entry.member && entry.instance == join.instance && entry.newest_connection == connection) {
    if (join.last_incarnation < open_) {  // it had not heard the welcome yet
      const auto index = static_cast<size_t>(found - entries_.begin());
      out.push_back(Tell{connection, WelcomeMessage{IncarnationFor(index)}});
      return;
    }
    entry.member = false;  // it knows why, and gets no alarm
    Close(Unavailable(cluster::ToString(entry.task) + " gave up incarnation " +
                      std::to_string(open_) + " and joins anew"),
          out);
  }
  if (entry.instance != join.instance) {
    const uint64_t old_connection = entry.newest_connection;
    if (entry.attached) {
      Detach(entry, "replaced by a newer process", true, out);
      out.push_back(End{old_connection, Stale(entry.task)});
    }
    if (entry.instance != 0) entry.replaced.insert(entry.instance);
  } else if (entry.attached && entry.newest_connection != connection) {
    const uint64_t old_connection = entry.newest_connection;
    Detach(entry, "connection lost, and made anew", true, out);
    out.push_back(
        End{old_connection, Status(StatusCode::kAborted, "this process has a newer connection")});
  }
  entry.instance = join.instance;
  entry.newest_connection = connection;
  entry.attached = true;
  by_connection_[connection] = static_cast<size_t>(found - entries_.begin());
  entry.joining = true;
  entry.left = false;
  entry.last_incarnation = join.last_incarnation;
  entry.about = {entry.task, join.data_address, join.host, join.checkpoint_step, join.instance};
  entry.last_heard = now;
  if (std::all_of(entries_.begin(), entries_.end(),
                  [](const Entry& p) { return p.attached && p.joining; })) {
    Open(now, out);
  }
}

void Roster::Open(Duration now, Answers& out) {
  open_ = last_id_ = std::max({options_.first_id, last_id_ + 1, highest_reported_ + 1});
  closed_why_ = OkStatus();
  next_round_ = 0;
  round_.reset();
  previous_texts_.reset();
  previous_status_ = OkStatus();
  members_.clear();
  for (Entry& entry : entries_) {
    entry.joining = false;
    entry.member = true;
    entry.last_incarnation = open_;
    entry.known = {open_, entry.instance};
    entry.standing = {.task = entry.task, .moved = now, .waiting_since = now};
    members_.push_back(entry.about);
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    out.push_back(Tell{entries_[i].newest_connection, WelcomeMessage{IncarnationFor(i)}});
  }
}

Incarnation Roster::IncarnationFor(size_t index) const {
  return {.id = last_id_, .process = static_cast<int>(index), .members = members_};
}

void Roster::Close(const Status& why, Answers& out) {
  if (open_ == 0) return;
  FailRound(why, out);
  for (Entry& entry : entries_) {
    if (entry.member && entry.attached) {
      out.push_back(Tell{entry.newest_connection, AlarmMessage{open_, why}});
    }
    entry.member = false;
  }
  open_ = 0;
  closed_why_ = why;
}

void Roster::Detach(Entry& entry, std::string why, bool lost, Answers& out) {
  const bool was_member = std::exchange(entry.member, false);
  entry.attached = false;
  by_connection_.erase(entry.newest_connection);
  entry.joining = false;
  entry.absence = lost ? "lost: " + why : why;
  if (was_member && lost) {
    Close(Unavailable(cluster::ToString(entry.task) + " " + entry.absence), out);
  }
}

void Roster::OnBeat(Entry& entry, const BeatMessage& beat, Duration now) {
  if (entry.member && beat.incarnation == open_) entry.standing.Report(beat.progress, now);
}

void Roster::OnLeave(Entry& entry, Answers& out) {
  const uint64_t connection = entry.newest_connection;
  const bool was_member = entry.member;
  entry.left = true;
  Detach(entry, "left", false, out);
  if (was_member) {
    FailRound(Unavailable(cluster::ToString(entry.task) + " left"), out);
    bool any = false;
    for (const Entry& other : entries_) {
      if (!other.member) continue;
      any = true;
      out.push_back(Tell{other.newest_connection, LeftMessage{entry.task}});
    }
    if (!any) Close(Unavailable("all members left"), out);
  }
  out.push_back(Tell{connection, LeftMessage{entry.task}});
  out.push_back(End{connection, OkStatus()});
}

void Roster::On(const Broken& event, Duration, Answers& out) {
  ended_.erase(event.connection);
  if (Entry* entry = Attached(event.connection)) Detach(*entry, event.why, true, out);
}

void Roster::On(const Tick&, Duration now, Answers& out) {
  if (last_tick_ && now - *last_tick_ > options_.tick + options_.lost_after / 2) {
    // We stood still ourselves, and heard nobody meanwhile.
    const Duration pause = now - *last_tick_ - options_.tick;
    for (Entry& entry : entries_) {
      entry.last_heard = std::min(now, entry.last_heard + pause);
      entry.standing.moved = std::min(now, entry.standing.moved + pause);
      entry.standing.waiting_since = std::min(now, entry.standing.waiting_since + pause);
    }
  }
  last_tick_ = now;
  for (Entry& entry : entries_) {
    if (!entry.attached || now - entry.last_heard <= options_.lost_after) continue;
    const uint64_t connection = entry.newest_connection;
    Detach(entry, "silent for " + SecondsText(now - entry.last_heard), true, out);
    out.push_back(End{connection, Status(StatusCode::kAborted,
                                         cluster::ToString(entry.task) + " " + entry.absence)});
  }
  if (open_ != 0) {
    std::vector<Standing> standings;
    for (const Entry& entry : entries_) {
      if (entry.member) standings.push_back(entry.standing);
    }
    if (const auto stuck = FindStuck(standings, now, options_.stuck_after)) Close(*stuck, out);
  }
  if (round_ && now >= round_->deadline) {
    std::vector<std::string> here;
    std::vector<std::string> missing;
    std::string stands;  // where the first that is missing does
    for (size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      const std::string name = cluster::ToString(entry.task);
      (round_->parts.contains(i) ? here : missing).push_back(name);
      if (stands.empty() && !round_->parts.contains(i)) {
        stands = "; " + name + " " + Where(entry.standing.progress);
      }
    }
    FailRound(
        DeadlineExceeded("agree on \"" + round_->name + "\": " + Names(missing) +
                         " did not come within " + SecondsText(round_->deadline - round_->started) +
                         "; here: " + Names(here) + stands),
        out);
  }
}

void Roster::FailRound(const Status& status, Answers& out) {
  if (!round_) return;
  for (const auto& [index, part] : round_->parts) out.push_back(Answer{part.call, status, nullptr});
  round_.reset();
  ++next_round_;
  previous_status_ = status;
  previous_texts_.reset();
}

Status Roster::CheckAsked(const AgreeMessage& message, size_t* index) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& p) { return p.task == message.task; });
  if (found == entries_.end()) {
    return FailedPrecondition("expected one of the members " + TaskNames(options_.tasks) +
                              ", got: " + cluster::ToString(message.task));
  }
  *index = static_cast<size_t>(found - entries_.begin());
  if (found->replaced.contains(message.instance)) return Stale(message.task);
  if (message.incarnation != 0 && message.incarnation == last_id_ && !closed_why_.ok()) {
    return closed_why_;
  }
  if (open_ == 0 || message.incarnation != open_ || !found->member ||
      found->instance != message.instance) {
    return FailedPrecondition("stale incarnation: expected a member of " +
                              (open_ == 0 ? std::string("the next one") : std::to_string(open_)) +
                              ", got: " + cluster::ToString(message.task) + " of " +
                              std::to_string(message.incarnation));
  }
  for (const Entry& entry : entries_) {
    if (entry.left) return Unavailable(cluster::ToString(entry.task) + " left");
  }
  if (message.name.size() + message.text.size() > kMaxAgreeBytes) {
    return InvalidArgument(
        "agree: expected at most " + std::to_string(kMaxAgreeBytes) +
        " bytes, got: " + std::to_string(message.name.size() + message.text.size()));
  }
  return OkStatus();
}

void Roster::On(const Asked& event, Duration now, Answers& out) {
  const AgreeMessage& message = event.message;
  const auto answer = [&](const Status& status) {
    out.push_back(Answer{event.call, status, nullptr});
  };
  size_t index = 0;
  if (const Status checked = CheckAsked(message, &index); !checked.ok()) return answer(checked);
  entries_[index].last_heard = now;
  if (next_round_ > 0 &&
      message.round == next_round_ - 1) {  // asked again, or came after the others' deadline
    out.push_back(Answer{event.call, previous_status_, previous_texts_});
    return;
  }
  if (message.round != next_round_) {
    return answer(FailedPrecondition(
        "agree on \"" + message.name + "\": expected " + cluster::ToString(message.task) +
        " in round " + std::to_string(next_round_) + ", got: " + std::to_string(message.round)));
  }
  const Duration deadline = now + std::max(message.timeout, Duration(0));
  if (!round_) {
    round_ = Round{.name = message.name,
                   .first = message.task,
                   .started = now,
                   .deadline = deadline,
                   .parts = {}};
  }
  round_->deadline = std::min(round_->deadline, deadline);
  Part& part = round_->parts[index];
  if (part.call != 0) {
    out.push_back(Answer{part.call, Aborted("asked again by the same process"), nullptr});
  }
  part = {event.call, message.text};
  if (message.name != round_->name) {
    FailRound(FailedPrecondition(
                  "members disagree on what to agree on: " + cluster::ToString(round_->first) +
                  " expects \"" + round_->name + "\", got: \"" + message.name + "\" from " +
                  cluster::ToString(message.task)),
              out);
    return;
  }
  if (round_->parts.size() < entries_.size()) return;
  auto texts = std::make_shared<std::vector<std::string>>();
  for (auto& [entry, given] : round_->parts) texts->push_back(std::move(given.text));
  previous_status_ = OkStatus();
  previous_texts_ = std::move(texts);
  for (const auto& [entry, given] : round_->parts) {
    out.push_back(Answer{given.call, OkStatus(), previous_texts_});
  }
  round_.reset();
  ++next_round_;
}

void Roster::On(const Withdrawn& event, Duration, Answers& out) {
  if (!round_) return;
  for (const auto& [index, part] : round_->parts) {
    if (part.call != event.call) continue;
    FailRound(Unavailable("agree on \"" + round_->name +
                          "\": " + cluster::ToString(entries_[index].task) + " waits no longer"),
              out);
    return;
  }
}

}  // namespace meshtrain::membership
