// A bucket's optimiser that queries Python for its learning rates, or lets Python do the whole update.
// See bucket_rule.h.
#include "api/python/src/bucket_rule.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>

namespace ouro::python {
namespace {

using train::Exchange;
using train::Optimizer;
using train::Param;
using train::StepOptions;

/// Some of the parameters of a step, with their parts of its exchange.
struct Part {
  std::vector<Param> params;
  std::vector<CView> neighbours;
  std::vector<View> messages;
};

class BucketOptimizer final : public Optimizer {
 public:
  using Groups = std::vector<std::pair<std::vector<std::string>, Rule>>;
  static Result<std::unique_ptr<Optimizer>> make(Held object, const Groups& groups,
                                                 std::shared_ptr<Raised> raised) {
    auto made = std::unique_ptr<BucketOptimizer>(new BucketOptimizer(std::move(object), std::move(raised)));
    for (const auto& [names, rule] : groups) {
      for (const std::string& n : names) made->group_of_[n] = made->inner_.size();
      auto inner = rule.make();
      if (!inner.ok()) return inner.status();
      made->inner_.push_back(*std::move(inner));
    }
    if (groups.empty()) {
      auto mixing = train::make_optimizer(train::SgdOptions{});
      if (!mixing.ok()) return mixing.status();
      made->mixing_ = *std::move(mixing);
    }
    return std::unique_ptr<Optimizer>(std::move(made));
  }

  Status step(std::span<const Param> params, const StepOptions& o, const Stream& stream) override {
    const bool updates =
        std::any_of(params.begin(), params.end(), [](const Param& p) { return p.grad.data != nullptr; });
    Status done = mixing_ ? foreign(params, o, stream, updates) : own(params, o, stream);
    if (!done.ok() || !updates) return done;
    return raised_->in_python([&] { object_->attr("stepped")(); });
  }
  double lr() const override {
    double rate = 0;
    (void)raised_->in_python([&] { rate = nb::cast<double>(object_->attr("rates")()[0]); }).ok();
    return rate;
  }
  std::uint64_t digest() const override {
    std::uint64_t d = mixing_ ? 1 : 2;
    for (const auto& inner : inner_) d = d * 1'000'003 + inner->digest();
    return d;
  }
  Result<Bytes> save() override {
    std::vector<Bytes> parts;
    for (const auto& inner : inner_) {
      auto one = inner->save();
      if (!one.ok()) return one.status();
      parts.push_back(*std::move(one));
    }
    Status s = raised_->in_python([&] {
      // Keeps the bytes alive while they are copied.
      const auto bytes = nb::cast<nb::bytes>(object_->attr("save")());
      const CBytes saved = view_of(bytes);
      parts.emplace_back(saved.begin(), saved.end());
    });
    if (!s.ok()) return s;
    Bytes all;
    for (const Bytes& part : parts) {
      const std::uint64_t size = part.size();
      const auto* head = reinterpret_cast<const std::byte*>(&size);
      all.insert(all.end(), head, head + sizeof size);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  Status load(CBytes in) override {
    std::vector<CBytes> parts;
    while (in.size() >= sizeof(std::uint64_t)) {
      std::uint64_t size = 0;
      std::copy_n(in.begin(), sizeof size, reinterpret_cast<std::byte*>(&size));
      in = in.subspan(sizeof size);
      if (size > in.size()) break;
      parts.push_back(in.first(size));
      in = in.subspan(size);
    }
    if (!in.empty() || parts.size() != inner_.size() + 1)
      return invalid("load: not the state of this optimiser, or damaged");
    for (std::size_t k = 0; k < inner_.size(); ++k)
      if (Status s = inner_[k]->load(parts[k]); !s.ok()) return s;
    return raised_->in_python([&] {
      object_->attr("load")(
          nb::bytes(reinterpret_cast<const char*>(parts.back().data()), parts.back().size()));
    });
  }

 private:
  BucketOptimizer(Held object, std::shared_ptr<Raised> raised)
      : object_(std::move(object)), raised_(std::move(raised)) {}

  /// Steps each group with its rule, at the rate and with the other options that Python supplies.
  Status own(std::span<const Param> params, const StepOptions& o, const Stream& stream) {
    std::vector<double> rates;
    std::vector<std::pair<std::size_t, Rule>> changed;
    Status queried = raised_->in_python([&] {
      rates = nb::cast<std::vector<double>>(object_->attr("rates")());
      changed = nb::cast<std::vector<std::pair<std::size_t, Rule>>>(object_->attr("changed")());
    });
    if (!queried.ok()) return queried;
    for (const auto& [k, rule] : changed) {
      auto with = rule.make();
      if (!with.ok()) return with.status();
      if (Status s = inner_.at(k)->adopt_options(**with); !s.ok()) return s;
    }
    if (rates.size() != inner_.size()) return invalid("rates: expected one of each group");
    std::vector<Part> parts(inner_.size());
    for (std::size_t i = 0; i < params.size(); ++i) {
      const auto at = group_of_.find(params[i].name);
      if (at == group_of_.end())
        return invalid("parameter '" + params[i].name + "' is in no group of its bucket's optimiser");
      Part& part = parts[at->second];
      part.params.push_back(params[i]);
      if (o.exchange == nullptr) continue;
      part.neighbours.push_back(o.exchange->neighbours[i]);
      part.messages.push_back(o.exchange->next_messages[i]);
    }
    for (std::size_t k = 0; k < parts.size(); ++k) {
      if (parts[k].params.empty()) continue;
      StepOptions mine = o;
      mine.lr = rates[k];
      Exchange exchange;
      if (o.exchange != nullptr) {
        exchange = *o.exchange;
        exchange.neighbours = parts[k].neighbours, exchange.next_messages = parts[k].messages;
        mine.exchange = &exchange;
      }
      if (Status s = inner_[k]->step(parts[k].params, mine, stream); !s.ok()) return s;
    }
    return {};
  }

  /// Mixes, lets the other library's optimiser update in place, and packs the next message.
  Status foreign(std::span<const Param> params, const StepOptions& o, const Stream& stream, bool updates) {
    std::vector<Param> values(params.begin(), params.end());
    for (Param& p : values) p.grad.data = nullptr;
    StepOptions mixing = o;
    if (o.exchange != nullptr)
      if (Status s = mixing_->step(values, mixing, stream); !s.ok()) return s;
    if (!updates) return {};
    const double scale = o.scale.inverse * o.scale.clip;
    if (Status s = raised_->in_python([&] { object_->attr("step")(scale); }); !s.ok()) return s;
    if (o.exchange == nullptr) return {};
    const train::Row alone;
    Exchange pack = *o.exchange;
    pack.row = &alone, pack.adaptive = 0;
    mixing.exchange = &pack;
    return mixing_->step(values, mixing, stream);
  }

  Held object_;
  std::shared_ptr<Raised> raised_;
  std::map<std::string, std::size_t> group_of_;
  std::vector<std::unique_ptr<Optimizer>> inner_;
  std::unique_ptr<Optimizer> mixing_;  // set if Python does the update
};

std::vector<std::string> names_of(std::span<const Param> params) {
  std::vector<std::string> names;
  for (const Param& p : params) names.push_back(p.name);
  return names;
}

}  // namespace

train::OptimizerFactory factory_of(nb::object made, std::shared_ptr<Raised> raised, bool rules_only) {
  if (nb::isinstance<Rule>(made)) return [rule = nb::cast<Rule>(made)](auto) { return rule.make(); };
  if (!PyCallable_Check(made.ptr())) wrong_type("optimizer", "a Rule, or a callable that returns one,", made);
  return [f = hold(std::move(made)), raised,
          rules_only](std::span<const Param> params) -> Result<std::unique_ptr<Optimizer>> {
    std::optional<Rule> rule;
    Held object;
    BucketOptimizer::Groups groups;
    Status s = raised->in_python([&] {
      nb::object given = (*f)(names_of(params));
      if (nb::isinstance<Rule>(given)) {
        rule = nb::cast<Rule>(given);
        return;
      }
      if (rules_only || !nb::hasattr(given, "groups"))
        wrong_type("optimizer", "a Rule from the callable", given);
      groups = typed<BucketOptimizer::Groups>("optimizer: groups", "a list of (names, Rule)",
                                              given.attr("groups"));
      object = hold(std::move(given));
    });
    if (!s.ok()) return s;
    return rule ? rule->make() : BucketOptimizer::make(std::move(object), groups, raised);
  };
}

train::ScheduleFactory schedules_of(nb::object made, std::shared_ptr<Raised> raised) {
  using train::Schedule;
  if (made.is_none()) return {};
  // If a rate function raises, the trainer fails; the exception is raised again when the trainer
  // has returned.
  const auto with_kept_error = [raised](const Schedule& s) {
    const auto rate = [s, raised](std::int64_t update) {
      try {
        return s.at(update);
      } catch (...) {
        nb::gil_scoped_acquire held;
        raised->keep(std::current_exception());
        throw;
      }
    };
    return Schedule(rate, s.known());
  };
  if (nb::isinstance<Schedule>(made))
    return [s = with_kept_error(nb::cast<Schedule>(made))](auto) { return s; };
  if (!PyCallable_Check(made.ptr()))
    wrong_type("schedule", "a Schedule, or a callable that returns one,", made);
  return [f = hold(std::move(made)), raised,
          with_kept_error](std::span<const Param> params) -> Result<Schedule> {
    std::optional<Schedule> schedule;
    Status s = raised->in_python([&] {
      const nb::object given = (*f)(names_of(params));
      if (!nb::isinstance<Schedule>(given))
        wrong_type("schedule", "a Schedule from the callable, such as Schedule(rate) of a rate(update)",
                   given);
      schedule = nb::cast<Schedule>(given);
    });
    if (!s.ok()) return s;
    return with_kept_error(*schedule);
  };
}

}  // namespace ouro::python
