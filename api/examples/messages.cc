// Messages between two ranks: rank 0 hands out tasks and takes results from any worker that is ready. Run it
// with: ouro-run -n 4 example-messages
#include <cstdint>
#include <iostream>
#include <vector>

#include "ouro/ouro.hpp"

namespace {

constexpr int kTask = 1, kResult = 2;  // tags: 0 to 2^31-1
constexpr std::int64_t kTasks = 20, kNoMore = -1;

ouro::Status hand_out(ouro::Group& world) {
  std::int64_t next = 0, sum = 0;
  auto send_task = [&](int worker) {
    std::int64_t task = next < kTasks ? next++ : kNoMore;
    return ouro::send(world, std::span(&task, 1), worker, kTask);
  };
  for (int worker = 1; worker < world.size(); ++worker) OURO_TRY(send_task(worker));
  for (std::int64_t done = 0; done < kTasks; ++done) {
    std::int64_t result = 0;
    // Receives from any source. Received holds the sender and the number of bytes.
    ouro::Result<ouro::Received> from = ouro::recv(world, std::span(&result, 1), ouro::kAnySource, kResult);
    if (!from) return from.status();
    sum += result;
    OURO_TRY(send_task(from->source));
  }
  if (sum != 2470) return {ouro::Reason::data_corrupt, "the sum of the squares of 0 to 19 is 2470"};
  std::cout << "sum of " << kTasks << " squares: " << sum << '\n';
  return {};
}

ouro::Status work(ouro::Group& world) {
  for (;;) {
    std::int64_t task = 0;
    ouro::Result<ouro::Received> from = ouro::recv(world, std::span(&task, 1), 0, kTask);
    if (!from) return from.status();
    if (task == kNoMore) return {};
    const std::int64_t square = task * task;
    OURO_TRY(ouro::send(world, std::span(&square, 1), 0, kResult));
  }
}

/// Each rank sends to its right neighbour and receives from its left one. Blocking calls would deadlock if
/// the message exceeds the library's buffers; between group_start and group_end, both progress together.
ouro::Status shift(ouro::Group& world) {
  const int rank = world.rank(), size = world.size();
  std::vector<float> mine(1 << 20, static_cast<float>(rank)), theirs(1 << 20);
  ouro::group_start();
  const ouro::Status sending = ouro::send(world, std::span(mine), (rank + 1) % size);
  const auto receiving = ouro::recv(world, std::span(theirs), (rank + size - 1) % size);
  OURO_TRY(ouro::group_end());  // the outcome of both
  OURO_TRY(sending);
  OURO_TRY(receiving.status());
  if (theirs.back() != static_cast<float>((rank + size - 1) % size))
    return {ouro::Reason::data_corrupt, "not the left neighbour's data"};
  return {};
}

/// The same as one exchange, in which order and length alone decide what meets.
ouro::Status shift_at_once(ouro::Group& world) {
  const int rank = world.rank(), size = world.size();
  std::vector<float> mine(1 << 20, static_cast<float>(rank)), theirs(1 << 20);
  const ouro::Transfer both[] = {ouro::Transfer::send_to((rank + 1) % size, std::span(mine)),
                                 ouro::Transfer::receive_from((rank + size - 1) % size, std::span(theirs))};
  OURO_TRY(ouro::exchange(world, both));
  if (theirs.back() != static_cast<float>((rank + size - 1) % size))
    return {ouro::Reason::data_corrupt, "not the left neighbour's data"};
  return {};
}

ouro::Status run() {
  ouro::Result<ouro::Context> context = ouro::Context::from_env();
  if (!context) return context.status();
  ouro::Group& world = context->world();
  if (world.size() < 2) return ouro::invalid("this example needs two ranks at least: ouro-run -n 2");
  OURO_TRY(world.rank() == 0 ? hand_out(world) : work(world));
  OURO_TRY(shift(world));
  OURO_TRY(shift_at_once(world));
  return context->close();
}

}  // namespace

int main() {
  const ouro::Status outcome = run();
  if (!outcome) std::cerr << outcome.message() << '\n';
  return outcome ? 0 : 1;
}
