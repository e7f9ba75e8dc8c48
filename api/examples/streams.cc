// Overlap: the all-reduce of one bucket of gradients runs on a stream while the next bucket is computed. Run
// it with: ouro-run -n 4 example-streams
#include <algorithm>
#include <cmath>
#include <iostream>
#include <vector>

#include "ouro/ouro.hpp"

namespace {

constexpr int kBuckets = 4;
constexpr std::size_t kCount = 1 << 16;  // elements per bucket

/// Takes the place of the backward pass of one bucket.
void compute(std::vector<double>& gradients, int bucket, int rank) {
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = bucket + rank + std::fmod(i, 3.0);
}

ouro::Status run() {
  ouro::Result<ouro::Context> context = ouro::Context::from_env();
  if (!context) return context.status();
  ouro::Group& world = context->world();

  // A host stream is a queue with its own thread. A default-made Stream{} is "no stream": operations on it
  // run in the calling thread, so the code below also works without overlap.
  ouro::Result<ouro::Stream> stream = ouro::Stream::create();
  if (!stream) return stream.status();

  // Buffers must live until their operations have ended.
  std::vector<std::vector<double>> buckets(kBuckets, std::vector<double>(kCount));
  std::vector<ouro::Work> works;
  for (int b = 0; b < kBuckets; ++b) {
    std::vector<double>& bucket = buckets[b];
    compute(bucket, b, context->rank());
    // Returns immediately. Input and output are the same buffer, so the operation runs in place.
    ouro::Result<ouro::Work> work =
        ouro::all_reduce(world, std::span(bucket), std::span(bucket), ouro::ReduceOp::avg, *stream);
    if (!work) return work.status();  // a wrong argument; nothing was enqueued
    works.push_back(*work);
  }

  // Host functions run in stream order, too: this one runs after all four reductions.
  double largest = 0;
  const ouro::Work last = stream->run([&] {
    for (const std::vector<double>& bucket : buckets)
      for (const double g : bucket) largest = std::max(largest, g);
    return ouro::Status();
  });

  // Work::test never blocks; Work::wait blocks and returns the outcome of its operation.
  for (const ouro::Work& work : works) OURO_TRY(work.wait());
  OURO_TRY(last.wait());
  OURO_TRY(stream->synchronize());  // ok: nothing that ran on the stream has failed

  const double mean_rank = (context->world_size() - 1) / 2.0;
  if (largest != kBuckets - 1 + 2 + mean_rank) return {ouro::Reason::data_corrupt, "the mean is wrong"};
  if (context->rank() == 0) std::cout << kBuckets << " buckets averaged, largest value " << largest << '\n';
  return context->close();  // leaves cleanly: waits for what is still queued
}

}  // namespace

int main() {
  const ouro::Status outcome = run();
  if (!outcome) std::cerr << outcome.message() << '\n';
  return outcome ? 0 : 1;
}
