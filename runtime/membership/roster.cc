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
  for (const cluster::TaskId task : options_.tasks) places_.push_back({.task = task});
}

std::vector<RosterAnswer> Roster::Handle(const RosterEvent& event, Duration now) {
  Answers out;
  std::visit([&](const auto& e) { On(e, now, out); }, event);
  for (const RosterAnswer& answer : out) {
    if (const auto* end = std::get_if<End>(&answer)) ended_.insert(end->connection);
  }
  return out;
}

Roster::Place* Roster::Attached(uint64_t connection) {
  const auto found = by_connection_.find(connection);
  return found == by_connection_.end() ? nullptr : &places_[found->second];
}

bool Roster::joining(uint64_t connection) const {
  const auto found = by_connection_.find(connection);
  return found != by_connection_.end() && places_[found->second].joining;
}

std::vector<double> Roster::StepSeconds() const {
  std::vector<double> seconds;
  seconds.reserve(places_.size());
  for (const Place& place : places_) seconds.push_back(place.standing.progress.step_seconds);
  return seconds;
}

std::string Roster::Missing() const {
  std::vector<std::string> names;
  for (const Place& place : places_) {
    if (place.attached && place.joining) continue;
    names.push_back(cluster::ToString(place.task) + " (" +
                    (place.attached ? "here, but does not join" : place.absence) + ")");
  }
  return Names(names);
}

void Roster::On(const Said& event, Duration now, Answers& out) {
  if (ended_.contains(event.connection)) return;
  if (const auto* join = std::get_if<JoinMessage>(&event.message)) {
    OnJoin(event.connection, *join, now, out);
    return;
  }
  Place* place = Attached(event.connection);
  if (place == nullptr) return;  // of a stream that has ended here
  place->last_heard = now;
  if (const auto* beat = std::get_if<BeatMessage>(&event.message)) {
    OnBeat(*place, *beat, now);
  } else {
    OnLeave(*place, out);
  }
}

void Roster::Learn(const JoinMessage& join, Answers& out) {
  highest_reported_ = std::max(highest_reported_, join.last_incarnation);
  if (join.last_incarnation == 0 || join.last_members.size() != places_.size()) return;
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (join.last_incarnation <= place.known.incarnation) continue;
    place.known = {join.last_incarnation, join.last_members[i]};
    const bool stale = place.last_incarnation > 0 &&
                       place.last_incarnation < place.known.incarnation &&
                       place.instance != place.known.instance;
    if (!stale || !place.attached) continue;
    const uint64_t connection = place.newest_connection;
    Detach(place, "replaced by a newer process", true, out);
    out.push_back(End{connection, Stale(place.task)});
  }
}

Status Roster::Admit(const Place& place, uint64_t connection, const JoinMessage& join) const {
  if (place.replaced.contains(join.instance)) return Stale(place.task);
  if (join.last_incarnation > 0 && join.last_incarnation < place.known.incarnation &&
      join.instance != place.known.instance) {
    return Stale(place.task);
  }
  if (place.instance == join.instance && connection < place.newest_connection) {
    return Unavailable("this process has a newer connection");
  }
  if (place.instance == 0 || place.instance == join.instance) return OkStatus();
  // Another process of the task was here in our time. That one is newer if it was never a member,
  // or was one later.
  if (join.last_incarnation > 0 &&
      (place.last_incarnation == 0 || join.last_incarnation <= place.last_incarnation)) {
    return Stale(place.task);
  }
  if (join.last_incarnation == 0 && place.attached) {
    return Unavailable(cluster::ToString(place.task) +
                       ": another process of this task is here and alive");
  }
  return OkStatus();
}

void Roster::OnJoin(uint64_t connection, const JoinMessage& join, Duration now, Answers& out) {
  const auto found = std::find_if(places_.begin(), places_.end(),
                                  [&](const Place& p) { return p.task == join.task; });
  const auto refuse = [&](Status why) { out.push_back(End{connection, std::move(why)}); };
  if (found == places_.end()) {
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
  Place& place = *found;
  if (const Status admitted = Admit(place, connection, join); !admitted.ok()) {
    return refuse(admitted);
  }

  if (place.member && place.instance == join.instance && place.newest_connection == connection) {
    if (join.last_incarnation < open_) {  // it had not heard the welcome yet
      const auto index = static_cast<size_t>(found - places_.begin());
      out.push_back(Tell{connection, WelcomeMessage{IncarnationFor(index)}});
      return;
    }
    place.member = false;  // it knows why, and gets no alarm
    Close(Unavailable(cluster::ToString(place.task) + " gave up incarnation " +
                      std::to_string(open_) + " and joins anew"),
          out);
  }
  if (place.instance != join.instance) {
    const uint64_t old_connection = place.newest_connection;
    if (place.attached) {
      Detach(place, "replaced by a newer process", true, out);
      out.push_back(End{old_connection, Stale(place.task)});
    }
    if (place.instance != 0) place.replaced.insert(place.instance);
  } else if (place.attached && place.newest_connection != connection) {
    const uint64_t old_connection = place.newest_connection;
    Detach(place, "connection lost, and made anew", true, out);
    out.push_back(
        End{old_connection, Status(StatusCode::kAborted, "this process has a newer connection")});
  }
  place.instance = join.instance;
  place.newest_connection = connection;
  place.attached = true;
  by_connection_[connection] = static_cast<size_t>(found - places_.begin());
  place.joining = true;
  place.left = false;
  place.last_incarnation = join.last_incarnation;
  place.about = {place.task, join.data_address, join.host, join.checkpoint_step, join.instance};
  place.last_heard = now;
  if (std::all_of(places_.begin(), places_.end(),
                  [](const Place& p) { return p.attached && p.joining; })) {
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
  for (Place& place : places_) {
    place.joining = false;
    place.member = true;
    place.last_incarnation = open_;
    place.known = {open_, place.instance};
    place.standing = {.task = place.task, .moved = now, .waiting_since = now};
    members_.push_back(place.about);
  }
  for (size_t i = 0; i < places_.size(); ++i) {
    out.push_back(Tell{places_[i].newest_connection, WelcomeMessage{IncarnationFor(i)}});
  }
}

Incarnation Roster::IncarnationFor(size_t index) const {
  return {.id = last_id_, .process = static_cast<int>(index), .members = members_};
}

void Roster::Close(const Status& why, Answers& out) {
  if (open_ == 0) return;
  FailRound(why, out);
  for (Place& place : places_) {
    if (place.member && place.attached) {
      out.push_back(Tell{place.newest_connection, AlarmMessage{open_, why}});
    }
    place.member = false;
  }
  open_ = 0;
  closed_why_ = why;
}

void Roster::Detach(Place& place, std::string why, bool lost, Answers& out) {
  const bool was_member = std::exchange(place.member, false);
  place.attached = false;
  by_connection_.erase(place.newest_connection);
  place.joining = false;
  place.absence = lost ? "lost: " + why : why;
  if (was_member && lost) {
    Close(Unavailable(cluster::ToString(place.task) + " " + place.absence), out);
  }
}

void Roster::OnBeat(Place& place, const BeatMessage& beat, Duration now) {
  if (place.member && beat.incarnation == open_) place.standing.Report(beat.progress, now);
}

void Roster::OnLeave(Place& place, Answers& out) {
  const uint64_t connection = place.newest_connection;
  const bool was_member = place.member;
  place.left = true;
  Detach(place, "left", false, out);
  if (was_member) {
    FailRound(Unavailable(cluster::ToString(place.task) + " left"), out);
    bool any = false;
    for (const Place& other : places_) {
      if (!other.member) continue;
      any = true;
      out.push_back(Tell{other.newest_connection, LeftMessage{place.task}});
    }
    if (!any) Close(Unavailable("all members left"), out);
  }
  out.push_back(Tell{connection, LeftMessage{place.task}});
  out.push_back(End{connection, OkStatus()});
}

void Roster::On(const Broken& event, Duration, Answers& out) {
  ended_.erase(event.connection);
  if (Place* place = Attached(event.connection)) Detach(*place, event.why, true, out);
}

void Roster::On(const Tick&, Duration now, Answers& out) {
  if (last_tick_ && now - *last_tick_ > options_.tick + options_.lost_after / 2) {
    // We stood still ourselves, and heard nobody meanwhile.
    const Duration pause = now - *last_tick_ - options_.tick;
    for (Place& place : places_) {
      place.last_heard = std::min(now, place.last_heard + pause);
      place.standing.moved = std::min(now, place.standing.moved + pause);
      place.standing.waiting_since = std::min(now, place.standing.waiting_since + pause);
    }
  }
  last_tick_ = now;
  for (Place& place : places_) {
    if (!place.attached || now - place.last_heard <= options_.lost_after) continue;
    const uint64_t connection = place.newest_connection;
    Detach(place, "silent for " + SecondsText(now - place.last_heard), true, out);
    out.push_back(End{connection, Status(StatusCode::kAborted,
                                         cluster::ToString(place.task) + " " + place.absence)});
  }
  if (open_ != 0) {
    std::vector<Standing> standings;
    for (const Place& place : places_) {
      if (place.member) standings.push_back(place.standing);
    }
    if (const auto stuck = FindStuck(standings, now, options_.stuck_after)) Close(*stuck, out);
  }
  if (round_ && now >= round_->deadline) {
    std::vector<std::string> here;
    std::vector<std::string> missing;
    std::string stands;  // where the first that is missing does
    for (size_t i = 0; i < places_.size(); ++i) {
      const Place& place = places_[i];
      const std::string name = cluster::ToString(place.task);
      (round_->parts.contains(i) ? here : missing).push_back(name);
      if (stands.empty() && !round_->parts.contains(i)) {
        stands = "; " + name + " " + Where(place.standing.progress);
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
  const auto found = std::find_if(places_.begin(), places_.end(),
                                  [&](const Place& p) { return p.task == message.task; });
  if (found == places_.end()) {
    return FailedPrecondition("expected one of the members " + TaskNames(options_.tasks) +
                              ", got: " + cluster::ToString(message.task));
  }
  *index = static_cast<size_t>(found - places_.begin());
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
  for (const Place& place : places_) {
    if (place.left) return Unavailable(cluster::ToString(place.task) + " left");
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
  places_[index].last_heard = now;
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
  if (round_->parts.size() < places_.size()) return;
  auto texts = std::make_shared<std::vector<std::string>>();
  for (auto& [place, given] : round_->parts) texts->push_back(std::move(given.text));
  previous_status_ = OkStatus();
  previous_texts_ = std::move(texts);
  for (const auto& [place, given] : round_->parts) {
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
                          "\": " + cluster::ToString(places_[index].task) + " waits no longer"),
              out);
    return;
  }
}

}  // namespace meshtrain::membership
