// compare_ouro: the library of this project through its public interface, with both classes of buffers.
// Started by bench/compare.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "bench/comparison/harness.h"
#include "ouro/ouro.hpp"

namespace ouro::compare {
namespace {

class OuroPeer : public Peer {
 public:
  std::string library() const override { return std::string("ouro ") + version(); }

  Error make_id(std::vector<std::byte>& id) override {
    auto made = UniqueId::create();
    if (!made) return made.status().message();
    id.resize(sizeof made->bytes);
    std::memcpy(id.data(), made->bytes, id.size());
    return {};
  }

  Error start(const Launch& launch) override {
    UniqueId id;
    if (launch.id->size() != sizeof id.bytes) return "an id of the wrong length";
    std::memcpy(id.bytes, launch.id->data(), sizeof id.bytes);
    InitOptions options;
    options.rank = launch.rank;
    options.world_size = launch.ranks;
    options.id = id;
    options.join_deadline = Milliseconds(30'000);
    options.deadline = Milliseconds(60'000);
    auto made = Context::create(options);
    if (!made) return made.status().message();
    context_ = std::move(*made);
    return {};
  }

  void* allocate(Buffer kind, std::size_t bytes) override {
    if (kind == Buffer::private_memory) return private_memory(bytes);
    auto made = context_.alloc(bytes);
    if (!made) return nullptr;
    memory_.push_back(std::move(*made));
    return memory_.back().data();
  }

  Error prepare(const Call& c, bool&) override {
    options_.algorithm = c.algorithm;
    return {};
  }

  bool run(const Call& c) override {
    const DType type = c.element == Element::float32 ? DType::f32 : DType::bf16;
    const CView in(c.in, c.in_count, type);
    const View out(c.out, c.out_count, type);
    Status s;
    switch (c.collective) {
      case Collective::all_reduce:
        s = all_reduce(context_.world(), in, out, ReduceOp::sum, options_);
        break;
      case Collective::broadcast:
        s = broadcast(context_.world(), in, out, 0, options_);
        break;
      case Collective::all_gather:
        s = all_gather(context_.world(), in, out, options_);
        break;
      case Collective::reduce_scatter:
        s = reduce_scatter(context_.world(), in, out, ReduceOp::sum, options_);
        break;
      case Collective::all_to_all:
        s = all_to_all(context_.world(), in, out, options_);
        break;
    }
    if (s.ok()) return true;
    error_ = s.message();
    return false;
  }

  Error error() const override { return error_; }

  void stop() override {
    memory_.clear();
    if (const Status s = context_.close(); !s.ok()) std::fprintf(stderr, "%s\n", s.message().c_str());
  }

 private:
  Context context_;
  std::vector<Memory> memory_;
  CallOptions options_;
  Error error_;
};

}  // namespace
}  // namespace ouro::compare

int main(int argc, char** argv) {
  ouro::compare::OuroPeer peer;
  return ouro::compare::run_harness(argc, argv, peer);
}
