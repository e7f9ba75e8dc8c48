// The roll of a job: the launcher writes which ranks have ended into memory that the ranks of its host can
// read. Written by ouro-run and its agents; read while ranks join, so that none waits for a rank
// that has ended.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/core/segment.h"
#include "runtime/core/status.h"

namespace ouro::rt {

class Roll {
 public:
  // The launcher's side.
  /// Makes the roll of job `job`, of `world` ranks, for the host whose first rank is `first`.
  /// Errors: resource.
  static Result<std::shared_ptr<Roll>> create(std::string_view job, int world, int first);
  /// Records that rank `rank` has ended with this exit code: 128 + the signal's number if a signal killed it.
  void ended(int rank, int code);
  /// The value of OURO_ROLL for ranks of this host, valid as long as this process and object live.
  std::string place() const;

  // The calls of a rank.
  /// The roll that OURO_ROLL names; nullptr if it is unset, or leads to no roll of this user (another PID
  /// namespace, a launcher that has ended). That is no error, since nothing but time is lost without a roll.
  static std::shared_ptr<const Roll> of_launcher();
  std::string job() const;
  int world() const;
  int first() const;
  /// The exit code of a rank that has ended; nullopt while it runs.
  std::optional<int> code(int rank) const;

 private:
  struct Page;
  explicit Roll(std::shared_ptr<SharedSegment> segment) : segment_(std::move(segment)) {}
  Page& page() const;
  std::shared_ptr<SharedSegment> segment_;
};

}  // namespace ouro::rt
