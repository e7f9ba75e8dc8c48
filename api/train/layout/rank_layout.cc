// Determines which ranks train and which hold replay buffers. See layout.hpp.
#include <fmt/format.h>

#include <algorithm>

#include "ouro/train/layout.hpp"

namespace ouro::train {
namespace {

/// Splits `total` into `parts` sizes; the first ones are larger by one.
std::vector<int> split(int total, int parts) {
  std::vector<int> sizes;
  for (int k = 0; k < parts; ++k) sizes.push_back(total / parts + (k < total % parts ? 1 : 0));
  return sizes;
}

/// The ranks below `count` by host, with hosts in the order of their first ranks.
std::vector<std::vector<int>> by_host(const std::vector<std::string>& hosts, int count) {
  std::vector<std::string> names;
  std::vector<std::vector<int>> ranks;
  for (int r = 0; r < count; ++r) {
    const std::string host = hosts.empty() ? "" : hosts[static_cast<std::size_t>(r)];
    const auto at = std::find(names.begin(), names.end(), host);
    const auto k = static_cast<std::size_t>(at - names.begin());
    if (at == names.end()) {
      names.push_back(host);
      ranks.emplace_back();
    }
    ranks[k].push_back(r);
  }
  return ranks;
}

/// The number of hosts, including the coordinator's.
int hosts_of(const RankLayoutOptions& o) { return static_cast<int>(by_host(o.hosts, o.world_size).size()); }

/// The chunks: each one's training ranks, then its buffer.
Result<std::vector<std::vector<int>>> chunks_of(const RankLayoutOptions& o, int training) {
  std::vector<std::vector<int>> chunks;
  const auto cut = [&chunks](const std::vector<int>& ranks, const std::vector<int>& sizes) {
    auto at = ranks.begin();
    for (const int n : sizes) {
      chunks.emplace_back(at, at + n);
      at += n;
    }
  };
  const int hosts = hosts_of(o);
  if (o.buffers % hosts != 0) {  // chunks cross hosts
    std::vector<int> all, sizes = split(training, o.buffers);
    for (int r = 0; r < training + o.buffers; ++r) all.push_back(r);
    for (int& n : sizes) ++n;
    cut(all, sizes);
    return chunks;
  }
  const int each = o.buffers / hosts;
  const auto of_hosts = by_host(o.hosts, training + o.buffers);
  for (const auto& ranks : of_hosts) {
    const int count = static_cast<int>(ranks.size());
    if (count < 2 * each)
      return invalid(
          fmt::format("{} buffers on the host of rank {}, which has {} ranks without the coordinator; "
                      "expected at least {}",
                      each, ranks[0], count, 2 * each));
    cut(ranks, split(count, each));
  }
  if (static_cast<int>(chunks.size()) != o.buffers)
    return invalid("a host has the coordinator alone, and its share of the buffers has no place");
  return chunks;
}

}  // namespace

Result<RankLayout> RankLayout::make(const RankLayoutOptions& o) {
  if (o.world_size < 1 || o.buffers < 0 || o.agent_groups < 1)
    return invalid(fmt::format("{} ranks, {} buffers, {} agent groups; expected at least 1, 0 and 1",
                               o.world_size, o.buffers, o.agent_groups));
  const int training = o.world_size - o.buffers - (o.coordinator ? 1 : 0);
  if (training < 1)
    return invalid(fmt::format("no training rank is left of {} with {} buffers{}", o.world_size, o.buffers,
                               o.coordinator ? " and a coordinator" : ""));
  if (training < o.buffers)
    return invalid(fmt::format("{} training ranks are fewer than {} buffers", training, o.buffers));
  if (training % o.agent_groups != 0)
    return invalid(fmt::format("{} agent groups do not divide {} training ranks", o.agent_groups, training));
  if (!o.hosts.empty() && static_cast<int>(o.hosts.size()) != o.world_size)
    return invalid(fmt::format("{} host names for {} ranks", o.hosts.size(), o.world_size));

  RankLayout layout;
  layout.world_ = o.world_size;
  layout.rule_ = o.rule;
  layout.group_size_ = training / o.agent_groups;
  if (o.coordinator) layout.coordinator_ = o.world_size - 1;
  if (o.rule == RankRule::interleaved && o.buffers > 0) {
    OURO_ASSIGN(auto chunks, chunks_of(o, training));
    for (std::vector<int>& chunk : chunks) {
      const int buffer = chunk.back();
      chunk.pop_back();
      layout.training_.insert(layout.training_.end(), chunk.begin(), chunk.end());
      layout.buffers_.push_back(buffer);
      layout.served_.emplace_back(buffer, std::move(chunk));
    }
    return layout;
  }
  for (int r = 0; r < training; ++r) layout.training_.push_back(r);
  for (int b = 0; b < o.buffers; ++b) {
    layout.buffers_.push_back(training + b);
    layout.served_.emplace_back(training + b, std::vector<int>());
    for (int r = b; r < training; r += o.buffers) layout.served_.back().second.push_back(r);
  }
  return layout;
}

std::vector<std::vector<int>> RankLayout::agent_groups() const {
  std::vector<std::vector<int>> groups;
  for (auto at = training_.begin(); at != training_.end(); at += group_size_)
    groups.emplace_back(at, at + group_size_);
  return groups;
}

bool RankLayout::is_training(int rank) const {
  return std::find(training_.begin(), training_.end(), rank) != training_.end();
}
bool RankLayout::is_buffer(int rank) const {
  return std::find(buffers_.begin(), buffers_.end(), rank) != buffers_.end();
}

std::optional<int> RankLayout::assigned_buffer(int rank) const {
  for (const auto& [buffer, agents] : served_)
    if (std::find(agents.begin(), agents.end(), rank) != agents.end()) return buffer;
  return std::nullopt;
}

std::optional<std::vector<int>> RankLayout::assigned_training_ranks(int rank) const {
  for (const auto& [buffer, agents] : served_)
    if (buffer == rank) return agents;
  return std::nullopt;
}

std::optional<int> RankLayout::agent_group_id(int rank) const {
  int agent = rank;
  if (rule_ == RankRule::interleaved)
    if (const auto served = assigned_training_ranks(rank)) agent = served->front();
  const auto at = std::find(training_.begin(), training_.end(), agent);
  if (at == training_.end()) return std::nullopt;
  return static_cast<int>(at - training_.begin()) / group_size_;
}

std::vector<std::vector<int>> RankLayout::groups() const {
  auto all = agent_groups();
  all.push_back(training_);
  if (!buffers_.empty()) all.push_back(buffers_);
  return all;
}

}  // namespace ouro::train
