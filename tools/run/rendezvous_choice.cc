// Chooses among offers. Used through rendezvous_choice.h.
#include "tools/run/rendezvous_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace ouro::run {

RendezvousChoice::RendezvousChoice(std::vector<std::string> hosts) {
  for (std::string& host : hosts) answers_.push_back({.host = std::move(host), .reached = {}});
}

void RendezvousChoice::offer(std::vector<Offer> offers) {
  offers_ = std::move(offers);
  for (Answer& a : answers_) a.reached.assign(offers_.size(), 0);
  std::vector<int> all(offers_.size());
  std::iota(all.begin(), all.end(), 0);
  reached(0, all);
}

void RendezvousChoice::reached(std::size_t host, const std::vector<int>& indexes) {
  answers_[host].given = true;
  for (const int i : indexes)
    if (i >= 0 && i < static_cast<int>(offers_.size()))
      answers_[host].reached[static_cast<std::size_t>(i)] = 1;
}

bool RendezvousChoice::complete() const {
  return std::all_of(answers_.begin(), answers_.end(), [](const Answer& a) { return a.given; });
}

Result<Offer> RendezvousChoice::choose() const {
  for (std::size_t i = 0; i < offers_.size(); ++i)
    if (std::all_of(answers_.begin(), answers_.end(), [i](const Answer& a) { return a.reached[i] != 0; }))
      return offers_[i];
  std::string text = fmt::format("no address of host {} is reached by all others:", answers_[0].host);
  for (std::size_t i = 0; i < offers_.size(); ++i) {
    std::vector<std::string_view> by;
    for (std::size_t host = 1; host < answers_.size(); ++host)
      if (answers_[host].reached[i] != 0) by.push_back(answers_[host].host);
    text += fmt::format("{} {} by {}", i == 0 ? "" : ";", offers_[i].address,
                        by.empty() ? "none" : fmt::format("{}", fmt::join(by, ", ")));
  }
  return invalid(std::move(text));
}

}  // namespace ouro::run
