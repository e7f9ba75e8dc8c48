// A replay buffer that trainers fill: the last rank of each chunk stores the batches of the others
// and scores each by its distance from what it has. Run it with: ouro-run -n 5
// example-replay-buffer [synchronous|deferred|asynchronous]
#include <cmath>
#include <cstring>
#include <deque>
#include <iostream>
#include <numeric>
#include <string_view>

#include "ouro/train/roles.hpp"

namespace {

namespace train = ouro::train;

constexpr int kBatches = 50;
constexpr std::size_t kBatch = 64, kCapacity = 500;  // numbers per batch, batches per buffer

int failed(const ouro::Status& s) {
  std::cerr << s.message() << '\n';
  return 1;
}

/// Keeps the means of the newest batches.
class Store {
 public:
  double add(ouro::CBytes data) {
    std::vector<double> batch(data.size() / sizeof(double));
    std::memcpy(batch.data(), data.data(), batch.size() * sizeof(double));
    const double mean =
        batch.empty() ? 0
                      : std::accumulate(batch.begin(), batch.end(), 0.0) / static_cast<double>(batch.size());
    const double score = means_.empty() ? 1 : std::abs(mean - sum_ / static_cast<double>(means_.size()));
    means_.push_back(mean);
    sum_ += mean;
    if (means_.size() > kCapacity) {
      sum_ -= means_.front();
      means_.pop_front();
    }
    return score;
  }
  std::size_t size() const { return means_.size(); }

 private:
  std::deque<double> means_;
  double sum_ = 0;
};

int serve(train::Mailbox& mail, int clients) {
  Store store;
  std::size_t weights = 0;  // size in bytes of the newest model that a trainer has sent
  const auto report = train::serve_replay(
      mail, clients,
      {.store = [&](int, ouro::CBytes data) { return store.add(data); },
       .metadata =
           [&](int) {
             const std::uint64_t many[] = {store.size()};
             const ouro::CBytes bytes = train::as_bytes(std::span<const std::uint64_t>(many));
             return ouro::Bytes(bytes.begin(), bytes.end());
           },
       .baseline_sync = [&](int, ouro::CBytes model) { weights = model.size(); }});
  if (!report.ok()) return failed(report.status());
  std::cout << "buffer " + std::to_string(mail.rank()) + ": " + std::to_string(report->stored) +
                   " batches of " + std::to_string(clients) + " trainers, " + std::to_string(report->syncs) +
                   " models of " + std::to_string(weights) + " bytes\n";
  return report->stored == std::int64_t{kBatches} * clients ? 0 : 1;
}

int collect(train::Mailbox& mail, int manager, train::Scoring scoring) {
  train::ReplayClient client(mail, manager, scoring);
  std::vector<double> batch(kBatch);
  for (int step = 0; step < kBatches; ++step) {
    for (std::size_t i = 0; i < kBatch; ++i)
      batch[i] = std::sin(static_cast<double>(mail.rank() + step) + 0.1 * static_cast<double>(i));
    if (const auto score = client.submit(train::as_bytes(std::span<const double>(batch))); !score.ok())
      return failed(score.status());
    if (step % 25 == 0)
      if (const auto sent = client.baseline_sync(train::as_bytes(std::span<const double>(batch))); !sent.ok())
        return failed(sent);
  }
  const auto metadata = client.metadata();
  if (!metadata.ok()) return failed(metadata.status());
  const auto left = client.leave(std::chrono::seconds(30));  // reads the outstanding scores
  if (!left.ok()) return failed(left);
  return metadata->size() == sizeof(std::uint64_t) && client.pending() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view how = argc > 1 ? argv[1] : "deferred";
  train::Scoring scoring = train::Scoring::deferred;
  if (how == "synchronous")
    scoring = train::Scoring::synchronous;
  else if (how == "asynchronous")
    scoring = train::Scoring::asynchronous;
  else if (how != "deferred")
    return std::cerr << "expected synchronous, deferred or asynchronous, not '" << how << "'\n", 2;
  auto context = ouro::Context::from_env();
  if (!context.ok()) return failed(context.status());
  auto roles = train::make_roles(*context, {.buffers = context->world_size() / 4});
  if (!roles.ok()) return failed(roles.status());
  const int rank = context->rank();
  int outcome = 0;
  if (const auto clients = roles->layout.assigned_training_ranks(rank))
    outcome = serve(*roles->mail, static_cast<int>(clients->size()));
  else if (const auto manager = roles->layout.assigned_buffer(rank))
    outcome = collect(*roles->mail, *manager, scoring);
  else
    std::cout << "rank " << rank << " has no buffer: expected 4 ranks at least\n";
  const ouro::Status closed = roles->close();
  return outcome != 0 ? outcome : closed.ok() ? 0 : failed(closed);
}
