// Roles of ranks: host names, layout, groups; and the replay service. See ouro/train/roles.hpp.
#include "ouro/train/roles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <set>

#include "api/train/common/comparison.h"
#include "api/train/common/not_in_batch.h"
#include "api/train/common/patient.h"
#include "api/train/layout/most_bytes.h"

namespace ouro::train {
namespace {

constexpr int kRequestTag = 0, kScoreTag = 0, kMetadataTag = 1;

std::vector<std::string> hosts_of(const Context& c) {
  std::vector<std::string> hosts;
  for (int r = 0; r < c.world_size(); ++r) hosts.push_back(fmt::format("host {}", c.host(r)));
  return hosts;
}

std::uint64_t digest_of(const RankLayoutOptions& o) {
  Digest d;
  for (const int x : {o.buffers, o.agent_groups, int{o.coordinator}, static_cast<int>(o.rule)}) d.add(x);
  for (const std::string& h : o.hosts) d.add(h);
  return d.value();
}

}  // namespace

Status Roles::close() {
  Status first;
  const auto note = [&](const Status& s) {
    if (first.ok()) first = s;
  };
  if (mail) note(mail->close());
  for (std::optional<Group>* g : {&agents, &train, &buffers})
    if (*g) note((*g)->close());
  return first;
}

Result<Roles> make_roles(Context& c, RankLayoutOptions options, GroupOptions group_options) {
  constexpr Milliseconds kDeadline{300'000};
  OURO_TRY(not_in_batch("roles"));
  group_options = patient(c, group_options, kDeadline);
  const int n = c.world_size(), r = c.rank();
  Status mine;
  if (options.world_size != 1 && options.world_size != n)
    mine = invalid(fmt::format("roles: options for {} ranks in a world of {}", options.world_size, n));
  options.world_size = n;
  if (n > 1) {
    const Claim claim{"other options", digest_of(options)};
    OURO_TRY(compare(c.world(), "roles", {&claim, 1}, mine));
    if (options.hosts.empty()) options.hosts = hosts_of(c);
  }
  OURO_TRY(mine);
  auto layout = RankLayout::make(options);  // all ranks use the same numbers, so either all refuse or none
  OURO_TRY(layout.status());
  Roles roles{.layout = *layout, .train = {}, .agents = {}, .buffers = {}, .mail = {}};
  const auto join = [&](std::span<const int> ranks, const char* tag, std::optional<Group>* where) -> Status {
    if (std::find(ranks.begin(), ranks.end(), r) == ranks.end()) return {};
    OURO_ASSIGN(*where, c.group(ranks, tag, group_options));
    return {};
  };
  for (const std::vector<int>& agents : layout->agent_groups())
    OURO_TRY(join(agents, "agents", &roles.agents));
  OURO_TRY(join(layout->training_ranks(), "train", &roles.train));
  OURO_TRY(join(layout->buffer_ranks(), "buffers", &roles.buffers));
  if (n == 1) return roles;
  std::vector<int> all(static_cast<std::size_t>(n));
  for (int k = 0; k < n; ++k) all[static_cast<std::size_t>(k)] = k;
  OURO_ASSIGN(auto group, c.group(all, "mail", group_options));
  OURO_ASSIGN(roles.mail, Mailbox::create(std::move(group)));
  return roles;
}

// ---- the replay service ------------------------------------------------------------------------------

Result<ReplayReport> serve_replay(Mailbox& mail, int clients, const ReplayHandlers& handlers,
                                  Milliseconds deadline) {
  if (clients < 1) return invalid(fmt::format("serve_replay: {} clients; expected 1 at least", clients));
  if (!handlers.store) return invalid("serve_replay: no handler stores the data");
  ReplayReport report;
  std::vector<Work> answers;
  const auto answer = [&](CBytes data, int to, int tag) -> Status {
    Status failed;  // status of a failed answer that has ended
    std::erase_if(answers, [&](const Work& w) {
      if (!w.test()) return false;
      if (failed.ok()) failed = w.status();
      return true;
    });
    OURO_TRY(failed);
    OURO_ASSIGN(auto work, mail.isend(data, to, tag));
    answers.push_back(std::move(work));
    return {};
  };
  std::set<int> gone;
  while (gone.size() < static_cast<std::size_t>(clients)) {
    OURO_ASSIGN(const auto m, mail.recv({}, kRequestTag, deadline));
    const auto kind = m.data.empty() ? ReplayRequest{} : static_cast<ReplayRequest>(m.data[0]);
    const CBytes payload = CBytes(m.data).subspan(m.data.empty() ? 0 : 1);
    switch (kind) {
      case ReplayRequest::data: {
        const double score[] = {handlers.store(m.source, payload)};
        ++report.stored;
        OURO_TRY(answer(as_bytes(std::span<const double>(score)), m.source, kScoreTag));
        continue;
      }
      case ReplayRequest::get_metadata:
        ++report.metadata;
        OURO_TRY(answer(handlers.metadata ? handlers.metadata(m.source) : Bytes(), m.source, kMetadataTag));
        continue;
      case ReplayRequest::baseline_sync:
        ++report.syncs;
        if (handlers.baseline_sync) handlers.baseline_sync(m.source, payload);
        continue;
      case ReplayRequest::exit:
        gone.insert(m.source);
        continue;
    }
    return invalid(
        fmt::format("serve_replay: rank {} sent {} bytes that begin with {}; expected a request of 1 to 4",
                    m.source, m.data.size(), static_cast<int>(kind)));
  }
  for (const Work& w : answers) OURO_TRY(w.wait());
  return report;
}

Status ReplayClient::request(ReplayRequest kind, CBytes payload) {
  if (payload.size() >= kMostBytes)
    return invalid(fmt::format("a request of {} bytes overflows an address", payload.size()));
  Bytes data;
  try {
    data.reserve(1 + payload.size());
  } catch (const std::bad_alloc&) {
    return {Reason::resource, fmt::format("no memory for a request of {} bytes", payload.size())};
  }
  data.push_back(static_cast<std::byte>(kind));
  data.insert(data.end(), payload.begin(), payload.end());
  return mail_.send(data, manager_, kRequestTag);
}

Result<double> ReplayClient::score(Milliseconds deadline) {
  OURO_ASSIGN(const auto m, mail_.recv(manager_, kScoreTag, deadline));
  double value = 0;
  if (m.data.size() != sizeof value)
    return invalid(
        fmt::format("a score of {} bytes from rank {}; expected {}", m.data.size(), manager_, sizeof value));
  std::memcpy(&value, m.data.data(), sizeof value);
  --pending_;
  return value;
}

Result<std::optional<double>> ReplayClient::submit(CBytes data) {
  if (left_) return invalid("submit: this client has left");
  const auto one = [&]() -> Result<std::optional<double>> {
    OURO_ASSIGN(const auto s, score(Milliseconds(0)));
    return std::optional(s);
  };
  std::optional<double> before;
  if (scoring_ == Scoring::deferred && pending_ > 0) {
    OURO_ASSIGN(before, one());
  }
  OURO_TRY(request(ReplayRequest::data, data));
  ++pending_;
  if (scoring_ == Scoring::synchronous) {
    // Scores of submissions whose wait failed arrive first, in order.
    while (pending_ > 1) OURO_TRY(one().status());
    return one();
  }
  if (scoring_ == Scoring::deferred) return before;
  OURO_ASSIGN(const auto here, mail_.probe(manager_, kScoreTag));
  if (here) return one();
  return std::optional<double>();
}

Result<Bytes> ReplayClient::metadata() {
  OURO_TRY(request(ReplayRequest::get_metadata, {}));
  ++metadata_owed_;
  for (;;) {  // answers to requests whose wait failed arrive first
    OURO_ASSIGN(auto m, mail_.recv(manager_, kMetadataTag));
    if (--metadata_owed_ == 0) return std::move(m.data);
  }
}
Status ReplayClient::baseline_sync(CBytes data) { return request(ReplayRequest::baseline_sync, data); }

Status ReplayClient::leave(Milliseconds deadline) {
  if (left_) return {};
  Status drained;
  while (pending_ > 0 && drained.ok()) drained = score(deadline).status();
  const Status said = request(ReplayRequest::exit, {});
  left_ = said.ok();
  return drained.ok() ? said : drained;
}

}  // namespace ouro::train
