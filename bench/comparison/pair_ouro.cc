// compare_pair_ouro: this library between two ranks that share no memory, joined by the launcher's variables.
// Started by bench/compare --transport.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "bench/comparison/pair.h"
#include "ouro/ouro.hpp"

namespace ouro::compare {
namespace {

void need(const Status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "%s\n", s.message().c_str());
  std::_Exit(1);
}

class OuroPair : public Pair {
 public:
  std::string library() const override { return std::string("ouro ") + version(); }
  std::string start(int* rank) override {
    InitOptions options;
    options.join_deadline = Milliseconds(15'000);
    options.deadline = Milliseconds(30'000);
    auto made = Context::from_env(options);
    if (!made) return made.status().message();
    context_ = std::move(*made);
    if (context_.world().size() != 2) return "wants two ranks";
    *rank = context_.world().rank();
    peer_ = 1 - *rank;
    return {};
  }
  void send(const void* data, std::size_t bytes) override {
    need(ouro::send(context_.world(), CView(data, bytes, DType::u8), peer_));
  }
  void recv(void* data, std::size_t bytes) override {
    need(ouro::recv(context_.world(), View(data, bytes, DType::u8), peer_).status());
  }
  void send_many(const void* data, std::size_t bytes, int count) override {
    many(count, [&] { send(data, bytes); });
  }
  void recv_many(void* data, std::size_t bytes, int count) override {
    many(count, [&] { recv(data, bytes); });
  }
  void all_reduce(const float* in, float* out, std::size_t count) override {
    need(ouro::all_reduce(context_.world(), CView(in, count, DType::f32), View(out, count, DType::f32),
                          ReduceOp::sum));
  }
  void stop() override { need(context_.close()); }

 private:
  template <class Start>
  void many(int count, Start&& start) {
    for (int done = 0; done < count; done += kWindow) {
      const int n = std::min(kWindow, count - done);
      group_start();
      for (int i = 0; i < n; ++i) start();
      need(group_end());
    }
  }
  Context context_;
  int peer_ = -1;
};

}  // namespace
}  // namespace ouro::compare

int main(int argc, char** argv) {
  ouro::compare::OuroPair pair;
  return ouro::compare::run_pair(argc, argv, pair);
}
