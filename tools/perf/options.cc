// Grammar of sizes, type and operation lists and rank splits; checks across options.
// Used by cli.cc, the rank program and the tests.
#include "tools/perf/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace ouro::perf {
namespace {

std::optional<std::uint64_t> parse_unsigned(std::string_view s, int base) {
  std::uint64_t v = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), v, base);
  if (error != std::errc{} || end != s.data() + s.size() || s.empty()) return std::nullopt;
  return v;
}

std::string_view trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

bool has_prefix(std::string_view s, std::string_view lower) {
  return s.size() >= lower.size() &&
         std::equal(lower.begin(), lower.end(), s.begin(), [](char a, char b) { return a == (b | 0x20); });
}

/// Parses decimal, 0x hexadecimal or 0b binary.
std::optional<std::uint64_t> parse_any_base(std::string_view s) {
  if (has_prefix(s, "0x")) return parse_unsigned(s.substr(2), 16);
  if (has_prefix(s, "0b")) return parse_unsigned(s.substr(2), 2);
  return parse_unsigned(s, 10);
}

template <class E>
std::string names(int count) {
  std::string s = "all";
  for (int i = 0; i < count; ++i) s += fmt::format(", {}", name(static_cast<E>(i)));
  return s;
}

}  // namespace

std::optional<std::size_t> parse_size(std::string_view s) {
  std::uint64_t unit = 1;
  if (s.size() > 1 && (s.back() == 'B' || s.back() == 'b')) s.remove_suffix(1);
  if (!s.empty()) {
    switch (s.back() | 0x20) {
      case 'k':
        unit = 1ull << 10;
        break;
      case 'm':
        unit = 1ull << 20;
        break;
      case 'g':
        unit = 1ull << 30;
        break;
      default:
        break;
    }
    if (unit > 1) s.remove_suffix(1);
  }
  const auto v = parse_unsigned(s, 10);
  if (!v || *v > std::numeric_limits<std::size_t>::max() / unit) return std::nullopt;
  return *v * unit;
}

std::vector<std::size_t> sizes(const Options& o, std::size_t element_bytes) {
  std::vector<std::size_t> list;
  std::size_t size = o.min_bytes;
  while (size <= o.max_bytes) {
    list.push_back(size);
    const std::size_t next =
        o.step_factor > 1
            ? (size == 0 ? element_bytes : size * std::min(o.step_factor, o.max_bytes / size + 1))
            : size + o.step_bytes;
    if (next <= size) break;  // a step of 0, or overflow
    size = next;
  }
  return list;
}

Result<std::vector<DType>> parse_dtypes(const std::string& text) {
  if (text != "all") {
    if (const auto t = parse_dtype(text)) return std::vector{*t};
    return invalid(fmt::format("unknown type '{}'; one of: {}", text, names<DType>(kDTypes)));
  }
  std::vector<DType> list;
  for (int i = 0; i < kDTypes; ++i) list.push_back(static_cast<DType>(i));
  return list;
}

Result<std::vector<OpKind>> parse_ops(const std::string& text) {
  if (text != "all") {
    if (const auto o = parse_op(text)) return std::vector{*o};
    return invalid(fmt::format("unknown operation '{}'; one of: {}", text, names<OpKind>(kOps)));
  }
  std::vector<OpKind> list;
  for (int i = 0; i < kOps; ++i) list.push_back(static_cast<OpKind>(i));
  return list;
}

int Split::color(int rank) const {
  const auto r = static_cast<std::uint64_t>(rank);
  switch (op) {
    case '%':
      return static_cast<int>(r % value);
    case '&':
      return static_cast<int>(r & value);
    case '|':
      return static_cast<int>((r | value) & 0x7fffffff);
    case '/':
      return static_cast<int>(r / value);
    default:
      return 0;
  }
}

Result<Split> parse_split(std::string_view whole) {
  std::string_view s = trim(whole);
  Split split;
  for (const auto& [word, op] : {std::pair<std::string_view, char>{"mod", '%'},
                                 {"and", '&'},
                                 {"or", '|'},
                                 {"div", '/'},
                                 {"%", '%'},
                                 {"&", '&'},
                                 {"|", '|'},
                                 {"/", '/'}}) {
    const bool match = op == word[0] ? !s.empty() && s[0] == op : has_prefix(s, word);
    if (!match) continue;
    split.op = op;
    s = trim(s.substr(word.size()));
    break;
  }
  const auto value = parse_any_base(s);
  if (split.op == 0 || !value)
    return invalid(
        fmt::format("split '{}' is not of the form MOD|AND|OR|DIV number, such as 'MOD 8'", whole));
  if ((split.op == '%' || split.op == '/') && *value == 0)
    return invalid(fmt::format("split '{}' divides by zero", whole));
  split.value = *value;
  return split;
}

Result<Split> split_from_env() {
  if (const char* text = std::getenv("NCCL_TESTS_SPLIT")) {
    auto split = parse_split(text);
    if (!split) return invalid("NCCL_TESTS_SPLIT: " + split.status().failure()->text);
    return split;
  }
  if (const char* text = std::getenv("NCCL_TESTS_SPLIT_MASK")) {
    const std::string_view s = text;
    const auto mask = has_prefix(s, "0x") ? parse_any_base(s) : parse_unsigned(s, 16);
    if (!mask) return invalid(fmt::format("NCCL_TESTS_SPLIT_MASK='{}' is not a hexadecimal number", s));
    return Split{'&', *mask};
  }
  return Split{};
}

Result<double> min_busbw_from_env() {
  const char* text = std::getenv("NCCL_TESTS_MIN_BW");
  if (text == nullptr) return 0.0;
  double value = -1;
  const char* end = text + std::strlen(text);
  if (const auto [stop, error] = std::from_chars(text, end, value);
      error != std::errc{} || stop != end || !(value >= 0 && std::isfinite(value)))
    return invalid(fmt::format("NCCL_TESTS_MIN_BW='{}': expected GB/s, 0 or more", text));
  return value;
}

namespace {

constexpr int kMostThreads = 256;  // the limit of Context::threads
constexpr int kMostSamples = 1 << 16;

/// Checks the options that depend on whether the buffers are on a GPU or on the host.
Status validate_device(const Options& o) {
  if (!o.device) {
    if (o.events) return invalid("--events asks a GPU for the time; give --device cuda as well");
    if (o.limit) return invalid("--limit copies inside a GPU; give --device cuda as well, or see --verdict");
    return {};
  }
  const bool waits = o.blocking == Blocking::barrier || o.blocking == Blocking::stream_wait;
  if (o.graph > 0 && waits) return invalid("-G captures all iterations; -z 1 and 3 wait between them");
  if (o.graph > 0 && o.iteration_stats) return invalid("-G runs all iterations as one; -I 1 times each");
  if (o.graph > 0 && o.null_stream) return invalid("-G: the null stream (-y 1) cannot be captured");
  if (o.null_stream && o.local_threads() > 1)
    return invalid("-y 1: ranks that are threads would share one null stream and wait for each other in it");
  if (o.cpu_time && o.events)
    return invalid("-C 1 times the calls and --events the device; give one of them");
  if (o.cpu_time && (waits || o.iteration_stats))
    return invalid("-C 1 times calls that do not wait; leave out -I and -z 1 or 3");
  if (o.iteration_stats && !o.events && !waits)
    return invalid("-I 1: calls return before the GPU has done anything; give --events, or -z 1 or 3");
  if (o.iteration_stats && o.events && o.iters > kMostSamples)
    return invalid(
        fmt::format("-I 1 with --events keeps at most {} iterations, -n is {}", kMostSamples, o.iters));
  return {};
}

}  // namespace

Status validate(const Options& o) {
  const KindInfo& k = info(o.kind);
  if (o.min_bytes > o.max_bytes)
    return invalid(fmt::format("-b {} is larger than -e {}", o.min_bytes, o.max_bytes));
  if (o.min_bytes < o.max_bytes && o.step_factor <= 1 && o.step_bytes == 0)
    return invalid("-i 0 never reaches -e; give a step in bytes or a factor with -f");
  if (o.local_threads() > 1 && o.ranks > 0)
    return invalid("-t and -g make ranks of threads and --ranks of processes; give one of them");
  if (o.local_threads() > kMostThreads)
    return invalid(fmt::format("-t {} -g {} are more than {} ranks", o.threads, o.gpus, kMostThreads));
  if (!o.aggregation) OURO_TRY(validate_device(o));  // the aggregation checks its options about GPUs itself
  if (o.aggregation)
    for (const DType t : o.dtypes)
      if (!averages(t))
        return invalid(fmt::format("-d {}: parameters are floating-point of 16 to 64 bits", name(t)));
  if (o.iteration_stats && o.skip_samples >= o.iters)
    return invalid(fmt::format("-K {} leaves no sample of -n {}", o.skip_samples, o.iters));
  if (!o.iteration_stats && o.skip_samples > 0) return invalid("-K skips samples of -I 1; give -I 1 as well");
  if (k.reduces()) {
    for (const OpKind op : o.ops)
      for (const DType t : o.dtypes)
        if (o.ops.size() == 1 && o.dtypes.size() == 1 && !applies(op, t))
          return invalid(fmt::format("{} is not defined on {}", name(op), name(t)));
  }
  return {};
}

}  // namespace ouro::perf
