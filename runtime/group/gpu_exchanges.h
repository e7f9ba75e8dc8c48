// GpuExchanges: exchanges of messages between memory of GPUs, by kernels where they can carry them. Used by
// Group.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "runtime/context/context.h"
#include "runtime/exec/gpu/exchange_path.h"
#include "runtime/group/failure_detector.h"
#include "runtime/group/member_records.h"

namespace ouro::rt {

/// Puts a group's exchanges into streams, and monitors those that have not ended: ranks that are late, that
/// have left, and what kernels have found out. The path is made on first use.
class GpuExchanges final : public DeviceObserver {
 public:
  GpuExchanges(Context& context, const Members& members, MemberRecords& records, std::uint64_t key,
               FailureDetector& detector, Waiter& waiter)
      : context_(context),
        members_(members),
        records_(records),
        key_(key),
        detector_(detector),
        waiter_(waiter) {}
  ~GpuExchanges();
  GpuExchanges(const GpuExchanges&) = delete;
  GpuExchanges& operator=(const GpuExchanges&) = delete;

  /// Whether kernels carry the group's exchanges: the same on all ranks. Errors: unsupported (OURO_GPU_PATH
  /// requires kernels, and they cannot).
  Result<bool> by_kernels();
  /// Enqueues transfers, all in memory of this rank's GPU. Precondition: by_kernels().
  Status run(std::span<const Transfer>, const std::shared_ptr<GpuStream>&, std::shared_ptr<WorkState>* work);
  /// How many exchanges this rank has enqueued.
  std::uint64_t ran();
  bool idle();
  /// Returns when all have ended.
  void drain();
  /// Called periodically by the watch thread.
  void poll_device() override;

 private:
  ExchangePath& path();
  ExchangePath* made();  ///< or nullptr, before the first use
  void check(ExchangePath::Pending&, const ExchangePath::Ranks& awaited);
  const GpuTopology& topology();

  Context& context_;
  const Members& members_;
  MemberRecords& records_;
  const std::uint64_t key_;
  FailureDetector& detector_;
  Waiter& waiter_;
  std::mutex mutex_;
  std::optional<GpuTopology> topology_;
  std::unique_ptr<ExchangePath> path_;
};

}  // namespace ouro::rt
