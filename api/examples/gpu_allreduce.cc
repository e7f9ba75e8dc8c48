// All-reduce of GPU memory on a GPU stream. Without a GPU, OURO_FAKE_GPUS=1 emulates one with host memory and
// threads. Run it with: OURO_FAKE_GPUS=1 ouro-run -n 2 example-gpu-allreduce
#include <iostream>
#include <vector>

#include "ouro/ouro.hpp"

namespace {

constexpr std::size_t kCount = 100'000;  // elements

/// Copies between host and device memory with a message of this rank to itself. It takes the place of
/// cudaMemcpy and of the kernels of a real program, so that this example needs no CUDA.
ouro::Status copy(ouro::Group& world, ouro::View to, ouro::CView from) {
  ouro::group_start();
  const auto receiving = ouro::recv(world, to, world.rank());
  const ouro::Status sending = ouro::send(world, from, world.rank());
  OURO_TRY(ouro::group_end());
  OURO_TRY(receiving.status());
  OURO_TRY(sending);
  return ouro::barrier(world);
}

ouro::Status run() {
  ouro::Result<ouro::Context> context = ouro::Context::from_env();
  if (!context) return context.status();
  ouro::Group& world = context->world();
  const ouro::Device gpu = context->device();  // default: local rank modulo the number of GPUs
  if (gpu.kind == ouro::Device::Kind::host)
    return ouro::unsupported("this rank has no GPU; OURO_FAKE_GPUS=1 makes one of host memory");

  // All ranks of the host can map memory of Context::alloc, so operations on it run in place. Memory of
  // cudaMalloc works, too: a View takes any address together with its device.
  ouro::Result<ouro::Memory> memory = context->alloc(kCount * sizeof(float), gpu);
  if (!memory) return memory.status();
  const ouro::View buffer(memory->data(), kCount, ouro::DType::f32, gpu);

  std::vector<float> host(kCount, static_cast<float>(context->rank() + 1));
  OURO_TRY(copy(world, buffer, std::span(host)));

  // A stream of the library. Stream::cuda(handle, gpu.index) wraps the program's cudaStream_t instead; then
  // the operation runs after the kernels already enqueued there, and before later kernels.
  ouro::Result<ouro::Stream> stream = ouro::Stream::create(gpu);
  if (!stream) return stream.status();
  ouro::Result<ouro::Work> work = ouro::all_reduce(world, buffer, buffer, ouro::ReduceOp::sum, *stream);
  if (!work) return work.status();
  OURO_TRY(work->wait());  // a program that continues on the stream need not wait

  OURO_TRY(copy(world, std::span(host), buffer));
  const int n = context->world_size();
  const auto expected = static_cast<float>(n * (n + 1) / 2);
  for (const float value : host)
    if (value != expected) return {ouro::Reason::data_corrupt, "the sum is wrong"};
  if (context->rank() == 0) std::cout << kCount << " elements on the GPU, each " << host[0] << '\n';
  return context->close();
}

}  // namespace

int main() {
  const ouro::Status outcome = run();
  if (!outcome) std::cerr << outcome.message() << '\n';
  return outcome ? 0 : outcome.reason() == ouro::Reason::unsupported ? 77 : 1;
}
