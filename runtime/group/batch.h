// Batch: the operations that a thread defers between group_start and group_end. Used by the API.
#pragma once
#include <memory>
#include <vector>

#include "runtime/core/thread_owned.h"
#include "runtime/group/group.h"

namespace ouro::rt {

/// The deferred operations and messages of a thread, which has at most one open batch.
class Batch {
 public:
  Batch() = default;
  Batch(Batch&&) = default;
  Batch& operator=(Batch&&) = delete;
  ~Batch();  ///< fails what was deferred and not submitted
  static Batch* current() { return t_current; }
  /// Opens a batch, or one level more of the open one.
  static void start();
  /// Ends one level; the outermost submits everything.
  static Status end();

  /// Each returns what the deferred call returns: ok, or an argument error, which end() returns again.
  Status defer(std::shared_ptr<Group>, const Operation&, std::shared_ptr<Stream>,
               std::shared_ptr<WorkState>* work);
  Status defer(std::shared_ptr<Group>, std::unique_ptr<Message>, std::shared_ptr<Stream>,
               std::shared_ptr<WorkState>* work);
  /// Exchanges of one group on one stream become one.
  Status defer(std::shared_ptr<Group>, std::vector<Transfer>, bool on_device, std::shared_ptr<Stream> s,
               std::shared_ptr<WorkState>* work);
  /// Records a call that cannot be deferred, like an argument error. Returns `why`.
  Status refuse(const Status& why);

 private:
  struct Item {
    std::shared_ptr<Group> group;
    std::shared_ptr<Stream> stream;
    std::unique_ptr<KeptOperation> operation;  // null for messages and exchanges
    std::shared_ptr<Message> message;
    std::vector<Transfer> transfers = {};
    bool on_device = false;               // the transfers
    std::shared_ptr<WorkState> promised;  // what the user waits on
  };
  /// Operations of one group, by index, that follow each other in that group and may run as one.
  struct Run {
    std::vector<std::size_t> items;
    bool done = false;
  };
  // Read on every call, so access needs neither a guard nor a function call.
  OURO_STATIC_TLS static inline constinit thread_local Batch* t_current = nullptr;
  Status submit();
  static Result<std::shared_ptr<WorkState>> run_on_gpu(Group&, const std::shared_ptr<Stream>&,
                                                       const std::vector<std::shared_ptr<Message>>&,
                                                       std::vector<std::shared_ptr<WorkState>> promised);
  Status defer_item(Item, std::shared_ptr<WorkState>* work);
  std::vector<Run> runs() const;
  bool can_run_as_one(const Run&) const;
  /// Runs the exchanges among the items as one, on `on` or (nullptr) in the caller.
  Status run_exchanges(Group&, const std::vector<Item*>&, Stream* on, bool keep_work);
  static void pass_on(const Status& submitted, const std::shared_ptr<WorkState>& work,
                      std::vector<std::shared_ptr<WorkState>> promised);
  int depth_ = 0;
  Status error_;
  std::vector<Item> items_;
  std::vector<std::shared_ptr<WorkState>> waits_;  // for work on other threads, for which end() waits
};

}  // namespace ouro::rt
