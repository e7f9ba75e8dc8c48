// Groups of operations. See batch.h.
#include "runtime/batch.h"

#include <algorithm>

namespace ouro::rt {
void Batch::start() {
  static thread_local std::unique_ptr<Batch> owner;
  if (!t_current) owner = std::make_unique<Batch>(), t_current = owner.get();
  ++t_current->depth_;
}

Status Batch::end() {
  if (!t_current) return invalid("group_end() without group_start()");
  if (--t_current->depth_ > 0) return {};
  Batch batch = std::move(*t_current);
  t_current = nullptr;  // what runs now is no longer deferred
  return batch.submit();
}

Status Batch::defer(std::shared_ptr<Group> g, const Operation& o, std::shared_ptr<Stream> s,
                    std::shared_ptr<WorkState>* work) {
  Status checked = check(o, g->rank(), g->size());
  if (!checked.ok()) {
    if (error_.ok()) error_ = checked;
    return checked;
  }
  auto promised = std::make_shared<WorkState>();
  *work = promised;
  items_.push_back(
      {std::move(g), std::move(s), std::make_unique<KeptOperation>(o), nullptr, std::move(promised)});
  return {};
}

Status Batch::defer(std::shared_ptr<Group> g, std::unique_ptr<Message> m, std::shared_ptr<Stream> s,
                    std::shared_ptr<WorkState>* work) {
  auto promised = std::make_shared<WorkState>();
  *work = promised;
  items_.push_back({std::move(g), std::move(s), nullptr, std::move(m), std::move(promised)});
  return {};
}

/// How many of the operations from item k on run as one: neighbours that differ in their buffers only, none
/// of which needs what another of them writes.
std::size_t Batch::run_from(std::size_t k) const {
  const Item& first = items_[k];
  const int rank = first.group->rank(), size = first.group->size();
  if (size == 1 || !first.group->one_host()) return 1;  // run as one they go over boards
  std::vector<const Operation*> run{&first.operation->get()};
  for (std::size_t j = k + 1; j < items_.size(); ++j) {
    const Item& i = items_[j];
    if (!i.operation || i.group != first.group || i.stream != first.stream ||
        !fusible(*run[0], i.operation->get(), rank, size))
      break;
    run.push_back(&i.operation->get());
  }
  if (run.size() == 1 || !depend(run)) return run.size();
  std::size_t many = 1;  // rare, so the simple way
  while (!depend(std::span(run).first(many + 1))) ++many;
  return many;
}

/// Messages of which some lie on a GPU, on its stream or one of the group's own.
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

/// Each group's share runs in the caller if it is the only one and has no stream, else on a stream of its
/// own, so that one thread can drive several ranks. Within a share, messages progress together, before the
/// collectives.
Status Batch::submit() {
  if (!error_.ok()) {  // an argument error drops all
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
  std::vector<std::shared_ptr<WorkState>> waits;
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
      return m->on_device != nullptr;
    });
    if (on_gpu) {
      auto work = run_on_gpu(*share.group, share.stream, messages, promised);
      if (!work.ok()) {
        note(work.status());
        for (const auto& p : promised) p->complete(work.status());
      } else if (!share.stream) {
        waits.push_back(std::move(*work));
      }
    } else if (!messages.empty()) {
      auto run = [group = share.group, messages, promised] {
        std::vector<Message*> raw;
        for (const auto& m : messages) raw.push_back(m.get());
        Status outcome = group->post(raw);
        if (outcome.ok()) outcome = group->complete(raw, std::chrono::milliseconds(0));
        for (std::size_t k = 0; k < promised.size(); ++k)
          promised[k]->complete(outcome.ok() ? messages[k]->outcome : outcome);
        return outcome;
      };
      if (here)
        note(run());
      else if (auto work = share.runs_on->enqueue(std::move(run)); !share.stream)
        waits.push_back(std::move(work));
    }
  }
  // In the order of the calls, which is what the members of a group agree on.
  for (std::size_t k = 0; k < items_.size();) {
    if (items_[k].message) {
      ++k;
      continue;
    }
    const auto share = std::find_if(shares.begin(), shares.end(), [&](const Share& s) {
      return s.group == items_[k].group && s.stream == items_[k].stream;
    });
    const std::size_t many = run_from(k);
    std::shared_ptr<WorkState> work;
    Status s;
    if (many > 1) {
      std::vector<const Operation*> operations;
      for (std::size_t j = k; j < k + many; ++j) operations.push_back(&items_[j].operation->get());
      auto fused =
          std::make_shared<const FusedOperation>(operations, share->group->rank(), share->group->size());
      s = share->group->submit(std::move(fused), share->runs_on, &work);
    } else {
      s = share->group->submit(items_[k].operation->get(), share->runs_on, &work);
    }
    note(s);
    std::vector<std::shared_ptr<WorkState>> promised;
    for (std::size_t j = k; j < k + many; ++j) promised.push_back(items_[j].promised);
    const auto keep = [promised = std::move(promised)](const Status& outcome) {
      for (const auto& p : promised) p->complete(outcome);
    };
    if (work)
      work->then(keep);
    else
      keep(s);
    if (work && !items_[k].stream) waits.push_back(std::move(work));
    k += many;
  }
  for (const auto& w : waits) {
    w->wait();
    note(w->outcome());
  }
  return first;
}

}  // namespace ouro::rt
