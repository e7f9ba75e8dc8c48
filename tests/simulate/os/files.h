// Descriptors of simulated processes: the objects they refer to, whether these are ready, and who waits for
// that. Used by the calls of the system and by the network.
#pragma once
#include <poll.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tests/simulate/engine/world.h"

namespace simulate {

class Epoll;

/// The object that a descriptor refers to.
class File : public std::enable_shared_from_this<File> {
 public:
  virtual ~File() = default;
  /// POLLIN, POLLOUT, POLLERR, POLLHUP in the current state.
  virtual short ready() const { return 0; }
  /// Called when the last descriptor has been closed, by the process or by its end.
  virtual void closed() {}
  /// The object may have become ready: wakes or notifies all waiters, which check again.
  void changed();

  std::vector<Epoll*> watchers;  // in an order that does not depend on addresses
  std::vector<Fiber*> sleepers;  // fibers in poll
};
using FilePtr = std::shared_ptr<File>;

class EventFd final : public File {
 public:
  explicit EventFd(std::uint64_t count) : count(count) {}
  short ready() const override { return count > 0 ? POLLIN | POLLOUT : POLLOUT; }
  std::uint64_t count;
};

class TimerFd final : public File {
 public:
  short ready() const override { return expired ? POLLIN : 0; }
  void set(Nanos from_now);  ///< negative: never
  bool expired = false;

 private:
  std::uint64_t settings_ = 0;
};

/// Edge-triggered for items that ask for it.
class Epoll final : public File {
 public:
  struct Item {
    File* file = nullptr;  ///< nullptr once closed
    std::uint32_t events = 0;
    std::uint64_t data = 0;
    bool listed = false;
  };
  short ready() const override { return 0; }
  void closed() override;
  void add(int fd, const FilePtr&, std::uint32_t events, std::uint64_t data);
  void remove(int fd);
  /// `file` may be ready: checks its items.
  void look(const File& file);
  struct Event {
    std::uint32_t events;
    std::uint64_t data;
  };
  std::vector<Event> take(std::size_t most);

  std::vector<Fiber*> waiting;

 private:
  void list(int fd, Item&);
  std::map<int, Item> items_;  // by descriptor
  std::vector<int> listed_;    // in the order in which they became ready
};

/// All descriptors of all processes; a number is used only once in a run.
class Files {
 public:
  static constexpr int kFirst = 1 << 17;  // above the real system's
  int open(Process&, FilePtr);
  FilePtr find(int fd) const;
  template <class T>
  std::shared_ptr<T> find_as(int fd) const {
    return std::dynamic_pointer_cast<T>(find(fd));
  }
  bool close(int fd);
  /// Closes everything that a process has left open.
  void close_all(const Process&);
  std::size_t count(const Process&) const;

 private:
  struct Entry {
    FilePtr file;
    const Process* owner;
  };
  std::vector<Entry> entries_;
};
inline Files* files = nullptr;

}  // namespace simulate
