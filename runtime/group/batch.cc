// Batches of operations and messages. See batch.h.
#include "runtime/group/batch.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <new>

#include "runtime/core/no_memory.h"
#include "runtime/core/thread_owned.h"

namespace ouro::rt {
namespace {
constinit thread_local Batch* t_kept = nullptr;  // the thread's batch, open or not
}  // namespace

Batch::~Batch() {
  for (const Item& i : items_)
    i.promised->complete(
        invalid("it was deferred by group_start(), and its thread ended before group_end()"));
  if (t_current == this) t_current = nullptr;
}

void Batch::start() {
  if (!t_current) {
    try {
      t_current = t_kept ? t_kept : make_for_thread(t_kept);
    } catch (const std::exception&) {
      // The batch is opened all the same, as this call has no way to report an error.
      alignas(Batch) static constinit thread_local std::byte t_room[sizeof(Batch)] = {};
      t_current = t_kept = new (t_room) Batch;
    }
  }
  ++t_current->depth_;
}

Status Batch::end() {
  if (!t_current) return invalid("group_end() without group_start()");
  if (--t_current->depth_ > 0) return {};
  Batch batch = std::move(*t_current);
  t_current = nullptr;  // what is called from here on is not deferred
  Status outcome;
  try {
    outcome = batch.submit();
  } catch (const std::exception&) {  // some may be in flight, and members wait for the others
    outcome = no_memory();
    for (const Item& i : batch.items_) (void)i.group->out_of_memory();
    for (const auto& w : batch.waits_) w->wait();  // until nothing uses the caller's buffers any more
    for (const Item& i : batch.items_) i.promised->complete(outcome);
  }
  batch.items_.clear();
  return outcome;
}

Status Batch::refuse(const Status& why) {
  if (error_.ok()) error_ = why;
  return why;
}

Status Batch::defer_item(Item item, std::shared_ptr<WorkState>* work) {
  item.promised = std::make_shared<WorkState>();
  *work = item.promised;
  items_.push_back(std::move(item));
  return {};
}

Status Batch::defer(std::shared_ptr<Group> g, const Operation& o, std::shared_ptr<Stream> s,
                    std::shared_ptr<WorkState>* work) {
  Group& group = *g;
  try {
    if (Status wrong = check(o, g->rank(), g->size()); !wrong.ok()) return refuse(wrong);
    return defer_item({.group = std::move(g),
                       .stream = std::move(s),
                       .operation = std::make_unique<KeptOperation>(o),
                       .message = nullptr,
                       .promised = nullptr},
                      work);
  } catch (const std::exception&) {
    return refuse(group.out_of_memory());
  }
}

Status Batch::defer(std::shared_ptr<Group> g, std::unique_ptr<Message> m, std::shared_ptr<Stream> s,
                    std::shared_ptr<WorkState>* work) {
  Group& group = *g;
  try {
    if (Status wrong = g->check(*m); !wrong.ok()) return refuse(wrong);
    return defer_item({.group = std::move(g),
                       .stream = std::move(s),
                       .operation = nullptr,
                       .message = std::move(m),
                       .promised = nullptr},
                      work);
  } catch (const std::exception&) {
    return refuse(group.out_of_memory());
  }
}

Status Batch::defer(std::shared_ptr<Group> g, std::vector<Transfer> transfers, bool on_device,
                    std::shared_ptr<Stream> s, std::shared_ptr<WorkState>* work) {
  Group& group = *g;
  try {
    for (const Transfer& t : transfers)
      if (Status wrong = g->check(t); !wrong.ok()) return refuse(wrong);
    for (const Item& i : items_)
      if (i.group == g && i.stream == s && !i.transfers.empty() && i.on_device != on_device)
        return refuse(
            invalid("exchange: in one batch and on one stream buffers on a GPU and in memory of the host"));
    return defer_item({.group = std::move(g),
                       .stream = std::move(s),
                       .operation = nullptr,
                       .message = nullptr,
                       .transfers = std::move(transfers),
                       .on_device = on_device,
                       .promised = nullptr},
                      work);
  } catch (const std::exception&) {
    return refuse(group.out_of_memory());
  }
}

/// The runs decide what all ranks put into their staging buffers, so they may depend only on what all ranks
/// know alike: the shapes of the operations of this group, in their order. They must not depend on what else
/// is in the batch.
std::vector<Batch::Run> Batch::runs() const {
  std::vector<Run> all;
  std::vector<std::pair<const Group*, std::size_t>> latest;  // of each group, its last run
  for (std::size_t k = 0; k < items_.size(); ++k) {
    const Item& i = items_[k];
    if (!i.operation) continue;
    const Group* const group = i.group.get();
    auto last = std::find_if(latest.begin(), latest.end(), [&](const auto& l) { return l.first == group; });
    if (last == latest.end()) {
      last = latest.insert(last, {group, all.size()});
    } else {
      const Operation& first = items_[all[last->second].items.front()].operation->get();
      if (group->size() > 1 && group->one_host() && !group->forces(first) &&  // over staging buffers
          fusible(first, i.operation->get(), group->rank(), group->size())) {
        all[last->second].items.push_back(k);
        continue;
      }
      last->second = all.size();
    }
    all.push_back({{k}});
  }
  return all;
}

/// Whether this rank can run them as one: they are on one stream, with no operation of another group between
/// them there, and none needs what another of them writes.
bool Batch::can_run_as_one(const Run& run) const {
  const Item& first = items_[run.items.front()];
  std::vector<const Operation*> operations;
  for (std::size_t k = run.items.front(); k <= run.items.back(); ++k) {
    const Item& i = items_[k];
    if (!i.operation) continue;
    const bool mine = i.group == first.group;
    if (mine ? i.stream != first.stream : i.stream && i.stream == first.stream) return false;
    if (mine) operations.push_back(&i.operation->get());
  }
  return !depend(operations, first.group->rank());
}

/// Runs messages of which some are in GPU memory, on `stream` if it is of that GPU, else on the group's own.
Result<std::shared_ptr<WorkState>> Batch::run_on_gpu(Group& group, const std::shared_ptr<Stream>& stream,
                                                     const std::vector<std::shared_ptr<Message>>& messages,
                                                     std::vector<std::shared_ptr<WorkState>> promised) {
  std::shared_ptr<GpuStream> on;
  if (stream && stream->gpu()) {
    on = stream->gpu()->shared_from_this();
  } else {
    auto own = group.own_gpu_stream();
    if (!own.ok()) return own.status();
    on = std::move(*own);
    if (stream)
      if (auto before = stream->last()) on->after(std::move(before));
  }
  auto work = group.run_on_gpu(messages, on);
  if (!work.ok()) return work;
  (*work)->then([promised = std::move(promised), messages](const Status& s) {
    for (std::size_t k = 0; k < promised.size(); ++k)
      promised[k]->complete(s.ok() ? messages[k]->outcome : s);
  });
  if (stream && !stream->gpu()) stream->after(*work);
  return work;
}

/// Ends the promised work with `work`, or, if there is none, with the status of its submission.
void Batch::pass_on(const Status& submitted, const std::shared_ptr<WorkState>& work,
                    std::vector<std::shared_ptr<WorkState>> promised) {
  const auto keep = [promised = std::move(promised)](const Status& outcome) {
    for (const auto& p : promised) p->complete(outcome);
  };
  if (work)
    work->then(keep);
  else
    keep(submitted);
}

Status Batch::run_exchanges(Group& group, const std::vector<Item*>& items, Stream* on, bool keep_work) {
  std::vector<Transfer> all;
  std::vector<std::shared_ptr<WorkState>> promised;
  bool on_device = false;
  for (const Item* i : items) {
    if (i->transfers.empty()) continue;
    all.insert(all.end(), i->transfers.begin(), i->transfers.end());
    on_device = i->on_device;
    if (i->promised.use_count() > 1) promised.push_back(i->promised);  // somebody may wait for it
  }
  if (all.empty()) return {};
  std::shared_ptr<WorkState> work;
  const Status s = group.exchange(all, on_device, on, &work);
  if (!promised.empty()) pass_on(s, work, std::move(promised));
  if (work && keep_work) waits_.push_back(std::move(work));
  return s;
}

/// Each group's share runs in the caller if it is the only one and has no stream, else on its stream or on
/// one of its own, so that one thread can drive several ranks. Within a share, messages progress together,
/// before the collectives.
Status Batch::submit() {
  if (!error_.ok()) {  // an argument error drops everything
    for (Item& i : items_) i.promised->complete(error_);
    return error_;
  }
  struct Share {
    std::shared_ptr<Group> group;
    std::shared_ptr<Stream> stream;
    std::vector<Item*> items;
    Stream* runs_on = nullptr;  // none: the caller
  };
  std::vector<Share> shares;
  for (Item& i : items_) {
    auto share = std::find_if(shares.begin(), shares.end(),
                              [&](const Share& s) { return s.group == i.group && s.stream == i.stream; });
    if (share == shares.end()) shares.push_back({i.group, i.stream, {}}), share = std::prev(shares.end());
    share->items.push_back(&i);
  }
  Status first;
  const auto note = [&](const Status& s) {
    if (first.ok() && !s.ok()) first = s;
  };
  for (Share& share : shares) {
    const bool here = !share.stream && shares.size() == 1;
    share.runs_on = share.stream ? share.stream.get() : here ? nullptr : &share.group->own_stream();
    std::vector<std::shared_ptr<Message>> messages;
    std::vector<std::shared_ptr<WorkState>> promised;
    for (Item* i : share.items)
      if (i->message) messages.push_back(i->message), promised.push_back(i->promised);
    const bool on_gpu = std::any_of(messages.begin(), messages.end(), [](const std::shared_ptr<Message>& m) {
      return m->device_memory != nullptr;
    });
    if (on_gpu) {
      auto work = run_on_gpu(*share.group, share.stream, messages, promised);
      if (!work.ok()) {
        note(work.status());
        for (const auto& p : promised) p->complete(work.status());
      } else if (!share.stream) {
        waits_.push_back(std::move(*work));
      }
    } else if (!messages.empty()) {
      auto run = [exchange = share.group->submit(messages, share.runs_on), messages, promised] {
        Status outcome = exchange();
        for (std::size_t k = 0; k < promised.size(); ++k)
          promised[k]->complete(outcome.ok() || messages[k]->done ? messages[k]->outcome : outcome);
        return outcome;
      };
      if (here)
        note(run());
      else if (auto work = share.runs_on->enqueue(std::move(run)); !share.stream)
        waits_.push_back(std::move(work));
    }
    note(run_exchanges(*share.group, share.items, share.runs_on, !share.stream));
  }
  // In the order of the calls, which is what the members of a group agree on.
  std::vector<Run> runs = this->runs();
  std::vector<Run*> run_of(items_.size(), nullptr);
  for (Run& run : runs)
    for (const std::size_t k : run.items) run_of[k] = &run;
  for (std::size_t k = 0; k < items_.size(); ++k) {
    Run* const run = run_of[k];
    if (!run || run->done) continue;
    const Item& item = items_[k];
    const auto share = std::find_if(shares.begin(), shares.end(), [&](const Share& s) {
      return s.group == item.group && s.stream == item.stream;
    });
    std::shared_ptr<WorkState> work;
    std::vector<std::shared_ptr<WorkState>> promised{item.promised};
    Status s;
    if (run->items.size() > 1 && k == run->items.front()) {
      std::vector<const Operation*> operations;
      for (const std::size_t j : run->items) operations.push_back(&items_[j].operation->get());
      const bool can = can_run_as_one(*run);
      s = item.group->submit(
          std::make_shared<const FusedOperation>(operations, item.group->rank(), item.group->size()), can,
          share->runs_on, &work);
      run->done = can || (!work && !s.ok());
      if (run->done)
        for (std::size_t j = 1; j < run->items.size(); ++j)
          promised.push_back(items_[run->items[j]].promised);
    }
    if (!run->done) s = item.group->submit(item.operation->get(), share->runs_on, &work);
    note(s);
    pass_on(s, work, std::move(promised));
    if (work && !item.stream) waits_.push_back(std::move(work));
  }
  for (const auto& w : waits_) {
    w->wait();
    note(w->outcome());
  }
  return first;
}

}  // namespace ouro::rt
