// Batches: many small operations, called between group_start and group_end, are submitted together. Run it
// with: ouro-run -n 4 example-batches
#include <iostream>
#include <vector>

#include "ouro/ouro.hpp"

namespace {

ouro::Status run() {
  ouro::Result<ouro::Context> context = ouro::Context::from_env();
  if (!context) return context.status();
  ouro::Group& world = context->world();
  const int rank = world.rank(), size = world.size();

  // Sixty-four small tensors. Consecutive operations in a batch that differ only in their buffers run as one
  // operation, without being packed into one buffer, so the batch pays for one start instead of sixty-four.
  std::vector<std::vector<float>> tensors;
  for (std::size_t i = 0; i < 64; ++i) tensors.emplace_back(10 + i, static_cast<float>(rank));
  ouro::group_start();
  for (std::vector<float>& t : tensors) {
    // Deferred: nothing has run yet, and the buffer keeps its old content until group_end returns.
    if (const ouro::Status s = ouro::all_reduce(world, std::span(t), std::span(t)); !s) {
      (void)ouro::group_end();
      return s;
    }
  }
  OURO_TRY(ouro::group_end());  // submits, waits, and returns the first error
  const auto expected = static_cast<float>(size * (size - 1) / 2);
  for (const std::vector<float>& t : tensors)
    for (const float value : t)
      if (value != expected) return {ouro::Reason::data_corrupt, "a sum is wrong"};

  // With a stream, group_end does not block, and every call returns the Work of its operation.
  ouro::Result<ouro::Stream> stream = ouro::Stream::create();
  if (!stream) return stream.status();
  std::vector<int> left(1), right(1);
  const std::vector<int> mine = {rank};
  const int before = (rank + size - 1) % size, after = (rank + 1) % size;
  // Four messages that would deadlock as blocking calls in this order.
  ouro::group_start();
  const auto a = ouro::recv(world, std::span(left), before, 0, *stream);
  const auto b = ouro::recv(world, std::span(right), after, 1, *stream);
  const auto c = ouro::send(world, std::span(mine), after, 0, *stream);
  const auto d = ouro::send(world, std::span(mine), before, 1, *stream);
  OURO_TRY(ouro::group_end());
  for (const auto* work : {&a, &b, &c, &d}) {
    OURO_TRY(work->status());
    OURO_TRY((*work)->wait());
  }
  if (left[0] != before || right[0] != after) return {ouro::Reason::data_corrupt, "wrong neighbours"};
  if (rank == 0) std::cout << tensors.size() << " tensors reduced, each element " << expected << '\n';
  return context->close();
}

}  // namespace

int main() {
  const ouro::Status outcome = run();
  if (!outcome) std::cerr << outcome.message() << '\n';
  return outcome ? 0 : 1;
}
