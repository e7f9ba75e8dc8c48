/// Status and Result: how every call of ouro reports success, or which rank failed, in what and why. Used by
/// every layer and by users (it is installed with the public headers; standard library only).
/// @file
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace ouro {

/// The coarse class of a failure, for programs that branch on it.
enum class Code : std::uint8_t {
  ok,           ///< success
  invalid,      ///< a wrong argument, ranks that differ in a call, or a rank that may not join
  unsupported,  ///< legal, but not in this build or version
  timeout,      ///< a deadline has passed
  peer_lost,    ///< a rank died or cannot be reached
  system,       ///< memory, files, the operating system, damaged data
  cuda,         ///< an error of the GPU or its driver
  aborted       ///< closed, aborted, or the others continued without this rank
};

/// The closed list of reasons. Each line gives the Code (`code_of`), the meaning and the remedy; `name` gives
/// the printed form ("peer-dead"). A failure of a collective is sticky: its group can then only shrink() and
/// close(). The reasons `invalid` and `unsupported` are not sticky.
enum class Reason : std::uint8_t {
  none,       ///< ok
  peer_dead,  ///< peer_lost: a process ended, or left the job too early. Call shrink(), or restart the job
  peer_unresponsive,  ///< peer_lost: a rank of another host is silent (OURO_SILENT_FAIL). As above
  link_lost,     ///< peer_lost: an interface is down, or no data gets across. Repair the network; as above
  mismatch,      ///< invalid: ranks differ in a call or a setting; the text has both. Fix the program
  deadline,      ///< timeout: not finished in time. Check the ranks that are named, or allow more time
  data_corrupt,  ///< system: data from the network fails its checksum. Check network and memory
  ring_corrupt,  ///< system: shared memory holds values that no rank writes. Report it as a bug
  refused,       ///< invalid: rejected when joining, or by a peer; the text says why. Fix the launch
  never_joined,  ///< timeout: some ranks did not join in time. Read the output of those that are named
  resource,      ///< system: out of memory, threads, descriptors or files. Raise the limit that is named
  forked,        ///< invalid: a forked child uses an object of its parent. Join anew in the child
  fenced,        ///< aborted: the other ranks continued without this one. End this process
  no_quorum,     ///< aborted: shrink() found too few ranks to continue. End them, restart the job
  revoked,       ///< aborted: closed or destroyed here, or ended on all ranks by abort() or shrink()
  invalid,       ///< invalid: a wrong argument; nothing happened, the group stays usable. Fix the call
  unsupported,   ///< unsupported: a legal call that this build or version lacks; the group stays usable
  device,        ///< cuda: an error of the GPU or its driver. End the process, restart the job
};

const char* name(Code);    ///< "peer-lost", ...
const char* name(Reason);  ///< "peer-dead", ...
Code code_of(Reason);      ///< the class of a reason

/// Everything that is known about one failure. Fields that do not apply stay at their defaults.
struct Failure {
  Reason reason = Reason::none;  ///< why
  std::string text = {};         ///< what happened, what was expected, what to do; no trailing period
  int rank = -1;                 ///< culprit, as a rank of `group`; -1: none or unknown
  std::string host = {};         ///< culprit's host
  int pid = 0;                   ///< culprit's process
  std::string group = {};        ///< name of the group, "" outside any
  std::uint64_t generation = 0;  ///< of the group
  std::string op = {};           ///< operation in progress, "" if none
  std::uint64_t seq = 0;         ///< its sequence number in the group
  std::string detector = {};     ///< what noticed: "pidfd", "control page", "deadline", ...
  double elapsed_s = 0;          ///< seconds from the start of the operation to the detection
  std::vector<int> dead = {};    ///< all ranks of the group known dead
};

/// Success, or a shared immutable Failure. Success allocates nothing. The pointer is the only member, so that
/// a caller's copy is one load of what one store wrote. A processor cannot forward two stores to one load:
/// the load would wait until both are in the cache, behind all stores of the call that wait for other cores.
class [[nodiscard]] Status {
 public:
  Status() = default;  ///< success
  /// A failure, with all that is known about it.
  explicit Status(Failure f) : shared_(new Shared{std::move(f)}) {}
  /// A failure without a culprit.
  Status(Reason reason, std::string text) : Status(Failure{.reason = reason, .text = std::move(text)}) {}

  /// @{
  /// Copies share the failure.
  Status(const Status& other) noexcept : shared_(other.shared_) { share(); }
  Status(Status&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
  Status& operator=(Status other) noexcept {
    std::swap(shared_, other.shared_);
    return *this;
  }
  /// @}
  ~Status() {
    if (shared_ != nullptr) [[unlikely]]
      drop(shared_);
  }

  bool ok() const { return shared_ == nullptr; }   ///< success?
  explicit operator bool() const { return ok(); }  ///< success?
  /// Why it failed; Reason::none on success.
  Reason reason() const { return shared_ ? shared_->failure.reason : Reason::none; }
  /// The class of the reason; Code::ok on success.
  Code code() const { return code_of(reason()); }
  /// The failure, or nullptr on success. Valid as long as this Status or a copy of it lives.
  const Failure* failure() const { return shared_ ? &shared_->failure : nullptr; }
  /// One line: "ouro: peer-dead: rank 3 (node7, pid 4121) in group dp, all_reduce seq 1182: ...".
  std::string message() const;
  /// The same as one JSON object.
  std::string json() const;

 private:
  struct Shared {
    const Failure failure;
    std::atomic<std::uint32_t> owners{1};
  };
  void share() const noexcept {
    if (shared_ != nullptr) [[unlikely]]
      shared_->owners.fetch_add(1, std::memory_order_relaxed);
  }
  [[gnu::noinline, gnu::cold]] static void drop(Shared* shared) noexcept {
    if (shared->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared;
  }
  Shared* shared_ = nullptr;
};

/// A failure for a wrong argument.
inline Status invalid(std::string text) { return {Reason::invalid, std::move(text)}; }
/// A failure for a legal call that is not implemented.
inline Status unsupported(std::string text) { return {Reason::unsupported, std::move(text)}; }

namespace detail {
/// Prints the message of `why` and aborts the program. Never throws.
[[noreturn]] void no_value(const Status* why) noexcept;
}  // namespace detail

/// A T or the Status that says why there is none. Access to the value requires ok(); otherwise the program
/// aborts with the text of the Status on stderr.
template <class T>
class [[nodiscard]] Result {
 public:
  /// Success.
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  /// A failure; `status` is not ok.
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}

  /// Whether there is a value.
  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }  ///< ok()
  /// Why there is no value; ok if there is one.
  Status status() const { return ok() ? Status{} : std::get<1>(state_); }
  /// @{
  /// The value. Requires ok().
  T& value() & { return held(state_); }
  const T& value() const& { return held(state_); }
  T&& value() && { return std::move(held(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  /// @}

 private:
  template <class State>
  static auto& held(State& state) {
    if (auto* const value = std::get_if<0>(&state)) [[likely]]
      return *value;
    detail::no_value(std::get_if<1>(&state));
  }
  std::variant<T, Status> state_;
};

/// Returns from the enclosing function with the Status of `expression` if it failed.
#define OURO_TRY(expression)                                                              \
  do {                                                                                    \
    if (::ouro::Status ouro_status = (expression); !ouro_status.ok()) return ouro_status; \
  } while (0)

/// Gives `target` the value of a Result, or returns from the enclosing function with its Status:
/// `OURO_ASSIGN(auto group, context.split(0, 1));`, `OURO_ASSIGN(known_->count, count());`. It expands to
/// several statements, so as the body of an `if` it compiles only within braces.
#define OURO_ASSIGN(target, ...) OURO_ASSIGN_NUMBERED(target, (__VA_ARGS__), __COUNTER__)
/// @cond parts of OURO_ASSIGN
#define OURO_ASSIGN_NUMBERED(target, expression, number) OURO_ASSIGN_TO(target, expression, number)
#define OURO_ASSIGN_TO(target, expression, number)                      \
  auto ouro_result_##number = expression;                               \
  if (!ouro_result_##number.ok()) return ouro_result_##number.status(); \
  target = *std::move(ouro_result_##number)
/// @endcond

}  // namespace ouro
