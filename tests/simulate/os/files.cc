// Descriptors. See files.h.
#include "tests/simulate/os/files.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

namespace simulate {

void File::changed() {
  for (Epoll* const e : watchers) e->look(*this);
  for (Fiber* const f : sleepers) world->wake(*f);
}

void TimerFd::set(Nanos from_now) {
  expired = false;
  const std::uint64_t mine = ++settings_;
  if (from_now < 0) return;
  world->after(from_now, [weak = weak_from_this(), mine] {
    const auto self = std::static_pointer_cast<TimerFd>(weak.lock());
    if (!self || self->settings_ != mine) return;
    self->expired = true;
    self->changed();
  });
}

void Epoll::closed() {
  for (auto& [fd, item] : items_) std::erase(item.file->watchers, this);
  items_.clear();
}

void Epoll::list(int fd, Item& item) {
  if (!item.listed) listed_.push_back(fd);
  item.listed = true;
  for (Fiber* const f : waiting) world->wake(*f);
}

void Epoll::add(int fd, const FilePtr& file, std::uint32_t events, std::uint64_t data) {
  Item& item = items_[fd];
  item.file = file.get(), item.events = events, item.data = data;
  if (std::find(file->watchers.begin(), file->watchers.end(), this) == file->watchers.end())
    file->watchers.push_back(this);
  if (static_cast<std::uint32_t>(file->ready()) & (events | EPOLLERR | EPOLLHUP)) list(fd, item);
}

void Epoll::remove(int fd) {
  const auto at = items_.find(fd);
  if (at == items_.end()) return;
  File* const file = at->second.file;
  items_.erase(at);
  std::erase(listed_, fd);
  std::erase(file->watchers, this);
}

void Epoll::look(const File& file) {
  for (auto& [fd, item] : items_)
    if (item.file == &file && static_cast<std::uint32_t>(file.ready()) & (item.events | EPOLLERR | EPOLLHUP))
      list(fd, item);
}

std::vector<Epoll::Event> Epoll::take(std::size_t most) {
  std::vector<Event> events;
  std::vector<int> left;
  for (const int fd : std::exchange(listed_, {})) {
    Item& item = items_.at(fd);
    const std::uint32_t now =
        static_cast<std::uint32_t>(item.file->ready()) & (item.events | EPOLLERR | EPOLLHUP);
    const bool taken = now != 0 && events.size() < most;
    if (taken) events.push_back({now, item.data});
    item.listed = now != 0 && (!taken || !(item.events & EPOLLET));
    if (item.listed) left.push_back(fd);
  }
  listed_.insert(listed_.begin(), left.begin(), left.end());
  return events;
}

int Files::open(Process& p, FilePtr file) {
  entries_.push_back({std::move(file), &p});
  return kFirst + static_cast<int>(entries_.size()) - 1;
}

FilePtr Files::find(int fd) const {
  const auto i = static_cast<std::size_t>(fd - kFirst);
  return fd >= kFirst && i < entries_.size() ? entries_[i].file : nullptr;
}

bool Files::close(int fd) {
  FilePtr file = find(fd);
  if (!file) return false;
  entries_[static_cast<std::size_t>(fd - kFirst)].file = nullptr;
  for (Epoll* const e : std::vector<Epoll*>(file->watchers)) e->remove(fd);
  file->closed();
  return true;
}

void Files::close_all(const Process& p) {
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].owner == &p && entries_[i].file) (void)close(kFirst + static_cast<int>(i));
}

std::size_t Files::count(const Process& p) const {
  return static_cast<std::size_t>(std::count_if(entries_.begin(), entries_.end(),
                                                [&](const Entry& e) { return e.file && e.owner == &p; }));
}

}  // namespace simulate
