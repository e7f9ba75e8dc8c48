// One rank over several hosts: times all-reduces, mixes and round trips, and counts the bytes that cross its
// host's interface. Prints a line of JSON for each host. Started by hosts.py and by tests/system/hosts.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/arguments.h"
#include "ouro/ouro.hpp"
#include "ouro/train/topology.hpp"
#include "tools/measure/figures.h"

namespace {

using namespace ouro;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Bytes of the whole host since this object was made; 0 if there is no such interface.
std::uint64_t counted(const char* what) {
  const char* interface = std::getenv("HOSTS_INTERFACE");
  std::uint64_t bytes = 0;
  std::ifstream(fmt::format("/sys/class/net/{}/statistics/{}", interface ? interface : "eth0", what)) >>
      bytes;
  return bytes;
}

using measure::median;

/// Times `once`, whose result for inputs of ones must be `want`.
Status rounds_of(Context& c, std::size_t bytes, int rounds, float want,
                 const std::function<Status(CView in, View out)>& once) {
  Group& g = c.world();
  std::vector<float> in(bytes / sizeof(float), 1.0f), out(in.size());
  const CView from{std::span<const float>(in)};
  const View to{std::span<float>(out)};
  for (int i = 0; i < 2; ++i) OURO_TRY(once(from, to));  // makes connections, touches memory
  OURO_TRY(barrier(g));
  const std::uint64_t sent = counted("tx_bytes"), got = counted("rx_bytes");
  std::vector<double> each;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = Clock::now();
    OURO_TRY(once(from, to));
    each.push_back(seconds_since(begin));
  }
  OURO_TRY(barrier(g));
  if (c.local_rank() == 0)
    fmt::print("{{\"rank\":{},\"seconds\":{:.9f},\"sent\":{},\"received\":{}}}\n", c.rank(), median(each),
               (counted("tx_bytes") - sent) / static_cast<unsigned>(rounds),
               (counted("rx_bytes") - got) / static_cast<unsigned>(rounds));
  if (out.front() != want || out.back() != want) return {Reason::data_corrupt, "the result is wrong"};
  return {};
}

Status reduce_rounds(Context& c, std::size_t bytes, std::string_view algorithm, int rounds) {
  return rounds_of(c, bytes, rounds, static_cast<float>(c.world().size()), [&](CView in, View out) {
    return all_reduce(c.world(), in, out, ReduceOp::sum, {.algorithm = algorithm});
  });
}

/// A mix of two ranks: one peer, as in a round of decentralised training on a ring.
Status mix_rounds(Context& c, std::size_t bytes, int rounds) {
  if (c.world_size() != 2)
    return invalid(fmt::format("mix is between 2 ranks, these are {}", c.world_size()));
  const int peer = 1 - c.rank();
  const train::Row row{0.25, {{peer, 0.75}}, {peer}};
  return rounds_of(c, bytes, rounds, 1,
                   [&](CView in, View out) { return train::mix(c.world(), row, in, out); });
}

/// Times a round trip between the first rank and the last; prints half of it.
Status round_trips(Context& c, std::size_t bytes, int rounds) {
  Group& g = c.world();
  std::vector<std::byte> data(bytes);
  const View all(data.data(), bytes, DType::u8);
  const int last = g.size() - 1, peer = g.rank() == 0 ? last : 0;
  std::vector<double> each;
  for (int i = 0; i < rounds + 2 && (g.rank() == 0 || g.rank() == last); ++i) {
    const auto begin = Clock::now();
    if (g.rank() == 0) OURO_TRY(send(g, all, peer));
    if (const auto r = recv(g, all, peer); !r.ok()) return r.status();
    if (g.rank() != 0) OURO_TRY(send(g, all, peer));
    if (i >= 2) each.push_back(seconds_since(begin) / 2);
  }
  if (g.rank() == 0) fmt::print("{{\"rank\":0,\"seconds\":{:.9f}}}\n", median(each));
  return barrier(g);
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<int> rounds = ouro::bench::number(argc, argv, 3, 1, 1, 1 << 20);
  std::size_t bytes = 0;
  const std::string_view what = argc > 1 ? argv[1] : "", size = argc > 2 ? argv[2] : "";
  const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), bytes);
  const bool right = argc == 4 && rounds && error == std::errc() && end == size.data() + size.size();
  if (const auto code = ouro::bench::help_or_refuse(
          argc, argv, right,
          "bench_hosts ALGORITHM|mix|message BYTES ROUNDS   (under a launcher; HOSTS_INTERFACE: eth0)"))
    return *code;
  auto context = Context::from_env();
  Status s = context.status();
  if (s.ok())
    s = what == "message" ? round_trips(*context, bytes, *rounds)
        : what == "mix"   ? mix_rounds(*context, bytes, *rounds)
                          : reduce_rounds(*context, bytes, what, *rounds);
  if (s.ok()) s = context->close();
  if (!s.ok()) fmt::print(stderr, "{}\n", s.message());
  return s.ok() ? 0 : 1;
}
