// Exact checks across ranks of several hosts. See check.h.
#include "tests/system/hosts/check.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>
#include <set>
#include <vector>

#include "kernels/arith/floats.h"
#include "kernels/flow/list.h"
#include "tests/runtime/group/exchange.h"

namespace ouro::test {
namespace {

constexpr std::size_t kFew = 5, kSome = 1003, kMany = 70'003;  // kMany: several slots of every link
constexpr Form kForms[] = {
    {Collective::all_reduce}, {Collective::reduce_scatter},   {Collective::reduce_scatter, true},
    {Collective::all_gather}, {Collective::all_gather, true}, {Collective::broadcast},
    {Collective::reduce},     {Collective::gather},           {Collective::scatter},
    {Collective::all_to_all}, {Collective::all_to_all, true}};

/// A small number as an element; integers wrap, booleans are 0 or 1, narrow floats round once.
void encode(DType t, float v, std::byte* to) {
  const auto put = [&](auto x) { std::memcpy(to, &x, sizeof x); };
  const auto whole = static_cast<std::int64_t>(v);
  switch (t) {
    case DType::f64:
      return put(static_cast<double>(v));
    case DType::f32:
      return put(v);
    case DType::f16:
      return put(arith::narrow<arith::Half>(v));
    case DType::bf16:
      return put(arith::narrow<arith::BFloat16>(v));
    case DType::f8e4m3:
      return put(arith::narrow<arith::F8E4M3>(v));
    case DType::f8e5m2:
      return put(arith::narrow<arith::F8E5M2>(v));
    case DType::boolean:
      return put(static_cast<std::uint8_t>(v != 0));
    default:
      std::memcpy(to, &whole, size_of(t));  // little-endian, modulo 2^bits
  }
}

bool reduces(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce || c == Collective::reduce_scatter;
}

/// The whole output of this rank in elements of type `t`.
std::vector<std::byte> expected(const Exchange& x, DType t, int rank) {
  const std::vector<float> sums = x.expected(rank);
  std::vector<std::byte> out(sums.size() * size_of(t));
  const bool any = t == DType::boolean && reduces(x.form.collective);  // a sum of booleans is OR
  const std::size_t from =
      x.form.collective == Collective::reduce_scatter ? Exchange::before(x.sent(rank), rank) : 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    float v = sums[i];
    if (any) {
      v = 0;
      for (int q = 0; q < x.n; ++q) v += Exchange::value(q, from + i) != 0;
    }
    encode(t, v, out.data() + i * size_of(t));
  }
  return out;
}

/// Makes one call and checks all of this rank's output. Returns what is wrong, or "".
std::string check_call(Group& g, const Exchange& x, DType t, const std::string& algorithm, bool in_place) {
  const int r = g.rank();
  const std::size_t width = size_of(t), in_count = x.in_count(r), out_count = x.out_count(r);
  const bool reads = x.reads(r), writes = x.writes(r);
  std::vector<std::byte> large(std::max(in_count, out_count) * width), small(large.size());
  std::byte* in = in_count >= out_count ? large.data() : small.data();
  std::byte* out = in_count >= out_count ? small.data() : large.data();
  if (in_place && reads && writes) {
    in = large.data() + (in_count < out_count ? width * x.in_place_at(r) : 0);
    out = large.data() + (in_count > out_count ? width * x.in_place_at(r) : 0);
  }
  for (std::size_t i = 0; reads && i < in_count; ++i) encode(t, Exchange::value(r, i), in + i * width);
  const Status s = x.call(g, reads ? CView(in, in_count, t) : CView(),
                          writes ? View(out, out_count, t) : View(), {.algorithm = algorithm});
  const auto where = [&] {
    return fmt::format("{}{} {} of {} x {}, root {}{}: ", name(x.form.collective), x.form.uneven ? "_v" : "",
                       algorithm, name(t), x.count, x.root, in_place ? ", in place" : "");
  };
  if (!s.ok()) return where() + s.message();
  if (!writes) return "";
  const std::vector<std::byte> want = expected(x, t, r);
  if (want.empty() || std::memcmp(out, want.data(), want.size()) == 0) return "";
  std::size_t at = 0;
  while (out[at] == want[at]) ++at;
  return where() + fmt::format("element {} of {} is wrong", at / width, out_count);
}

/// Algorithms that do not need memory shared by all ranks; "" stands for the selected one.
std::vector<std::string> algorithms(Collective c, int hosts) {
  std::vector<std::string> all{""};
  flow::for_each_flow([&](Collective of, flow::Algorithm a, auto f) {
    if (of == c && !f.kStaging && (hosts > 1 || !f.kBetweenHosts)) all.emplace_back(name(a));
  });
  return all;
}

/// Numbers of many magnitudes and both signs, the same in every run.
double uneven_number(int rank, std::size_t i) {
  std::uint64_t h = (static_cast<std::uint64_t>(rank) << 40 | i) * 0x9e3779b97f4a7c15u;
  h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
  h ^= h >> 32;
  const double mantissa = 1.0 + static_cast<double>(h & 0xfffff) / 0x100000;
  return (h >> 20 & 1 ? -1 : 1) * mantissa * static_cast<double>(std::uint64_t{1} << (h >> 21 & 7));
}

void mix_in(std::uint64_t& hash, const std::vector<std::byte>& bytes) {
  hash = XXH3_64bits_withSeed(bytes.data(), bytes.size(), hash);
}

}  // namespace

std::string check_collectives(Context& c, int* calls) {
  Group& g = c.world();
  const int n = g.size(), hosts = c.local_world_size() < n ? 2 : 1;
  int root = 0;
  const auto call = [&](Form form, DType t, std::size_t count, const std::string& algorithm, bool in_place) {
    if (in_place && form.uneven && form.collective == Collective::all_to_all)
      return std::string();  // not allowed
    ++*calls;
    root = (root + 1) % n;
    return check_call(g, {form, n, count, root}, t, algorithm, in_place);
  };
  for (const Form form : kForms) {
    for (int t = 0; t < kDTypes; ++t)
      for (const std::size_t count : {kFew, kSome})
        if (auto said = call(form, static_cast<DType>(t), count, "", count == kSome); !said.empty())
          return said;
    for (const std::string& algorithm : algorithms(form.collective, hosts))
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, kSome, kMany})
        for (const bool in_place : {false, true})
          if (auto said = call(form, DType::f32, count, algorithm, in_place); !said.empty()) return said;
    for (int every = 0; every < n; ++every)
      if (auto said = call(form, DType::i32, kSome, "", false); !said.empty()) return said;
  }
  if (const Status s = barrier(g); !s.ok()) return s.message();
  return "";
}

std::string check_messages(Context& c) {
  Group& g = c.world();
  const int n = g.size(), me = g.rank();
  const std::size_t largest = 300'001;
  std::vector<std::uint8_t> out(largest), in(largest);
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, largest})
    for (int apart = 1; apart < n; ++apart) {
      const int to = (me + apart) % n, from = (me - apart + n) % n;
      for (std::size_t i = 0; i < bytes; ++i)
        out[i] = static_cast<std::uint8_t>(i * 7 + static_cast<unsigned>(me));
      group_start();
      const Status sent = send(g, CView(out.data(), bytes, DType::u8), to, 3);
      const auto got = recv(g, View(in.data(), bytes, DType::u8), from, 3);
      const Status done = group_end();
      for (const Status& s : {sent, got.status(), done})
        if (!s.ok()) return fmt::format("{} bytes from rank {} to {}: {}", bytes, from, to, s.message());
      for (std::size_t i = 0; i < bytes; ++i)
        if (in[i] != static_cast<std::uint8_t>(i * 7 + static_cast<unsigned>(from)))
          return fmt::format("byte {} of {} from rank {} is wrong", i, bytes, from);
    }
  return "";
}

Result<std::uint64_t> canonical_hash(Context& c) {
  Group& g = c.world();
  const CallOptions canonical{.numerics = Numerics::canonical};
  const auto n = static_cast<std::size_t>(g.size());
  std::uint64_t hash = 0;
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const std::size_t block : {std::size_t{1}, kSome, kMany / 4}) {
      std::vector<std::byte> in(block * n * size_of(t)), out(in.size()), mine(block * size_of(t));
      for (std::size_t i = 0; i < block * n; ++i)
        encode(t, static_cast<float>(uneven_number(g.rank(), i)), in.data() + i * size_of(t));
      const CView all(in.data(), block * n, t);
      OURO_TRY(all_reduce(g, all, View(out.data(), block * n, t), ReduceOp::sum, canonical));
      mix_in(hash, out);
      OURO_TRY(reduce_scatter(g, all, View(mine.data(), block, t), ReduceOp::sum, canonical));
      mix_in(hash, mine);
      const int root = g.size() - 1;
      OURO_TRY(reduce(g, all, View(out.data(), block * n, t), ReduceOp::avg, root, canonical));
      if (g.rank() == root) mix_in(hash, out);
    }
  return hash;
}

Status exact_all_reduce(Group& g, std::size_t count, int word, int* sum) {
  std::vector<std::int32_t> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<std::int32_t>((i * 31 + static_cast<std::size_t>(g.rank()) * 7) % 1009);
  values[0] = word;
  const View all{std::span<std::int32_t>(values)};
  OURO_TRY(all_reduce(g, all, all));
  for (std::size_t i = 1; i < count; ++i) {
    std::int32_t want = 0;
    for (int r = 0; r < g.size(); ++r)
      want += static_cast<std::int32_t>((i * 31 + static_cast<std::size_t>(r) * 7) % 1009);
    if (values[i] != want)
      return {Reason::data_corrupt,
              fmt::format("element {} is {} in place of {}, and nobody said so", i, values[i], want)};
  }
  *sum = values[0];
  return {};
}

}  // namespace ouro::test
