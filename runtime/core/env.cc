// Looks up parameters: environment, then supplied values, then files, then defaults. Used through env.h by
// every layer.
#include "runtime/core/env.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <utility>

#include "runtime/core/env_supply.h"
#include "runtime/core/log.h"
#include "runtime/core/per_process.h"

extern char** environ;

namespace ouro {

Environment process_environment() {
  Environment all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const std::size_t eq = line.find('=');
    if (eq != std::string_view::npos) all.emplace(line.substr(0, eq), line.substr(eq + 1));
  }
  return all;
}

namespace env {
namespace {

constexpr std::string_view kSecret = "OURO_SECRET", kDefault = "default", kEnvironment = "environment";
// Variables that only the Python package and tests read, so they are not reported as typing errors.
constexpr std::string_view kElsewhere[] = {"OURO_BUILD_DIR", "OURO_HOME", "OURO_TORCH_AS", "OURO_TORCH_CACHE",
                                           "OURO_TORCH_ENV"};

struct Value {
  std::string text;
  std::string origin;
};

struct Files {
  std::map<std::string, Value, std::less<>> values;
  std::vector<std::string> complaints;
  bool named_is_missing = false;  // the file that OURO_CONF_FILE names cannot be opened
};

const Parameter* find(std::string_view name) {
  const auto* it = std::find_if(std::begin(kParameters), std::end(kParameters), [&](const Parameter& p) {
    return p.name == name || (!p.former.empty() && p.former == name);
  });
  return it == std::end(kParameters) ? nullptr : it;
}

std::string_view trim(std::string_view s) {
  const auto space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!s.empty() && space(s.front())) s.remove_prefix(1);
  while (!s.empty() && space(s.back())) s.remove_suffix(1);
  return s;
}

std::string unknown_name(std::string_view name) {
  const std::string_view near = nearest(name);
  return near.empty()
             ? fmt::format("{} is not a parameter of ouro and is ignored", name)
             : fmt::format("{} is not a parameter of ouro and is ignored; did you mean {}?", name, near);
}

/// Adds the KEY=VALUE lines of one file; later files override earlier ones.
void read_file(const std::string& path, bool must_exist, Files& files) {
  std::ifstream in(path);
  if (!in) {
    files.named_is_missing = must_exist;
    return;
  }
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const std::string_view body = trim(line);
    if (body.empty() || body.front() == '#') continue;
    const std::string where = fmt::format("{}:{}", path, number);
    const std::size_t eq = body.find('=');
    if (eq == std::string_view::npos) {
      files.complaints.push_back(fmt::format("{}: expected KEY=VALUE, found \"{}\"", where, body));
      continue;
    }
    const std::string key(trim(body.substr(0, eq)));
    const Parameter* const p = find(key);
    if (p == nullptr) {
      files.complaints.push_back(fmt::format("{}: {}", where, unknown_name(key)));
    } else {
      files.values[std::string(p->name)] = {std::string(trim(body.substr(eq + 1))), where};
    }
  }
}

Files read_files() {
  Files files;
  read_file("/etc/ouro.conf", false, files);
  const char* chosen = std::getenv("OURO_CONF_FILE");
  const char* home = std::getenv("HOME");
  if (chosen != nullptr && *chosen != '\0') {
    read_file(chosen, true, files);
  } else if (home != nullptr && *home != '\0') {
    read_file(std::string(home) + "/.ouro.conf", false, files);
  }
  return files;
}

constinit CopyOnWrite<Files> g_files;
const Files& files() {
  if (const Files* const read = g_files.get()) return *read;
  return g_files.change([](Files& f) { f = read_files(); });
}

/// Values that a library on top has supplied for variables that are not set (env_supply.h).
using Supplied = std::map<std::string, Value, std::less<>>;
constinit CopyOnWrite<Supplied> g_supplied;
std::optional<Value> supplied(std::string_view key) {
  const Supplied* const all = g_supplied.get();
  if (all == nullptr) return std::nullopt;
  const auto it = all->find(key);
  return it == all->end() ? std::nullopt : std::optional<Value>(it->second);
}

/// The value of a variable; blanks around numbers, switches and words to choose from do not count, as in
/// files. An empty variable counts as unset, as `OURO_X= program` means in a shell.
std::optional<std::string> set_to(const Parameter& p, std::string_view name) {
  const char* const set = name.empty() ? nullptr : std::getenv(std::string(name).c_str());
  if (set == nullptr) return std::nullopt;
  const bool free_text = p.type == Type::text && p.accepts.empty();
  const std::string_view text = free_text ? std::string_view(set) : trim(set);
  return text.empty() ? std::nullopt : std::optional<std::string>(text);
}

std::optional<Value> lookup(const Parameter& p) {
  const std::string key(p.name);
  if (auto set = set_to(p, p.name)) return Value{std::move(*set), std::string(kEnvironment)};
  if (auto set = set_to(p, p.former))
    return Value{std::move(*set), fmt::format("{}, as {}", kEnvironment, p.former)};
  if (std::optional<Value> v = supplied(key)) return v;
  if (const auto it = files().values.find(key); it != files().values.end()) return it->second;
  if (!p.fallback.empty()) return Value{std::string(p.fallback), std::string(kDefault)};
  return std::nullopt;
}

Status refuse(const Parameter& p, const Value& v, std::string_view expected) {
  return invalid(fmt::format("{}={} (from {}): expected {}", p.name, v.text, v.origin, expected));
}

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number out{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

std::optional<std::int64_t> suffixed(std::string_view text) {
  int shift = 0;
  if (!text.empty()) {
    switch (text.back()) {
      case 'K':
      case 'k':
        shift = 10;
        break;
      case 'M':
      case 'm':
        shift = 20;
        break;
      case 'G':
      case 'g':
        shift = 30;
        break;
      default:
        break;
    }
  }
  if (shift != 0) text.remove_suffix(1);
  const auto base = number<std::int64_t>(text);
  std::int64_t out = 0;
  if (!base || __builtin_mul_overflow(*base, std::int64_t{1} << shift, &out)) return std::nullopt;
  return out;
}

template <class Number>
bool in_range(Number value, std::string_view accepts) {
  const std::size_t dots = accepts.find("..");
  if (dots == std::string_view::npos) return true;
  const auto low = number<Number>(accepts.substr(0, dots)), high = number<Number>(accepts.substr(dots + 2));
  return low && high && value >= *low && value <= *high;
}

bool is_choice(std::string_view value, std::string_view accepts) {
  while (!accepts.empty()) {
    const std::size_t bar = std::min(accepts.find('|'), accepts.size());
    if (value == accepts.substr(0, bar)) return true;
    accepts.remove_prefix(std::min(bar + 1, accepts.size()));
  }
  return false;
}

Result<std::string> parse_text(const Parameter& p, const Value& v) {
  if (p.accepts.empty() || is_choice(v.text, p.accepts)) return v.text;
  return refuse(p, v, p.accepts);
}

Result<bool> parse_flag(const Parameter& p, const Value& v) {
  std::string lower = v.text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (is_choice(lower, "1|true|yes|on")) return true;
  if (is_choice(lower, "0|false|no|off")) return false;
  return refuse(p, v, "1 or 0, true or false, yes or no, on or off");
}

Result<std::int64_t> parse_integer(const Parameter& p, const Value& v) {
  const auto n = suffixed(v.text);
  if (!n || !in_range(*n, p.accepts)) return refuse(p, v, fmt::format("an integer in {}", p.accepts));
  return *n;
}

Result<double> parse_real(const Parameter& p, const Value& v) {
  const auto x = number<double>(v.text);
  if (!x || !in_range(*x, p.accepts)) return refuse(p, v, fmt::format("a number in {}", p.accepts));
  return *x;
}

template <class T>
Result<std::optional<T>> get(int index, Result<T> (*parse)(const Parameter&, const Value&)) {
  const Parameter& p = kParameters[index];
  const std::optional<Value> v = lookup(p);
  if (!v) return std::optional<T>();
  Result<T> parsed = parse(p, *v);
  if (!parsed.ok()) return parsed.status();
  return std::optional<T>(*std::move(parsed));
}

Status check(const Parameter& p, const Value& v) {
  switch (p.type) {
    case Type::text:
      return parse_text(p, v).status();
    case Type::flag:
      return parse_flag(p, v).status();
    case Type::integer:
      return parse_integer(p, v).status();
    case Type::real:
      return parse_real(p, v).status();
  }
  return {};
}

/// Levenshtein distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, change}));
    }
  }
  return row[b.size()];
}

}  // namespace

Result<std::optional<std::string>> text(Name<Type::text> n) { return get<std::string>(n.index, parse_text); }
Result<std::optional<bool>> flag(Name<Type::flag> n) { return get<bool>(n.index, parse_flag); }
Result<std::optional<std::int64_t>> integer(Name<Type::integer> n) {
  return get<std::int64_t>(n.index, parse_integer);
}
Result<std::optional<double>> real(Name<Type::real> n) { return get<double>(n.index, parse_real); }

namespace {
std::string origin(std::string_view name) {
  const Parameter* const p = find(name);
  const auto v = p ? lookup(*p) : std::nullopt;
  return v ? v->origin : std::string(kDefault);
}
}  // namespace

bool in_environment(std::string_view name) { return origin(name).starts_with(kEnvironment); }
bool chosen(std::string_view name) { return origin(name) != kDefault; }

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const Parameter& p : kParameters) {
    Setting s{&p, std::nullopt, "", {}};
    if (std::optional<Value> v = lookup(p)) {
      s.valid = check(p, *v);
      if (p.name == "OURO_CONF_FILE" && files().named_is_missing)
        s.valid = refuse(p, *v, "a file that can be read");
      s.value = p.name == kSecret ? "(not shown)" : std::move(v->text);
      s.origin = std::move(v->origin);
    }
    all.push_back(std::move(s));
  }
  return all;
}

Status valid() {
  for (const Setting& s : settings())
    if (!s.parameter->name.starts_with("OURO_DEBUG") && s.parameter->name != "OURO_ISA") OURO_TRY(s.valid);
  return {};
}

std::string_view nearest(std::string_view unknown) {
  constexpr std::size_t kNear = 4;  // more edits than this are not a typing error
  std::string_view best;
  std::size_t best_distance = kNear + 1;
  for (const Parameter& p : kParameters) {
    const std::size_t d = distance(unknown, p.name);
    if (d < best_distance) {
      best = p.name;
      best_distance = d;
    }
  }
  return best;
}

std::vector<std::string> complaints() {
  std::vector<std::string> lines = files().complaints;
  for (const auto& [key, value] : process_environment()) {
    const bool elsewhere =
        std::find(std::begin(kElsewhere), std::end(kElsewhere), key) != std::end(kElsewhere);
    if (key.starts_with("OURO_") && find(key) == nullptr && !elsewhere) lines.push_back(unknown_name(key));
  }
  return lines;
}

void report() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const std::string& line : complaints()) OURO_WARN("{}", line);
    for (const Setting& s : settings())
      if (s.value && s.origin != kDefault)
        OURO_INFO(ENV, "{}={} ({})", s.parameter->name, *s.value, s.origin);
  });
}

void supply(std::string_view name, std::string value, std::string origin) {
  g_supplied.change([&](Supplied& all) { all.insert_or_assign(std::string(name), Value{value, origin}); });
}

void withdraw(std::string_view name) {
  g_supplied.change([&](Supplied& all) {
    if (const auto it = all.find(name); it != all.end()) all.erase(it);
  });
}

void reload() {
  g_files.change([](Files& f) { f = read_files(); });
}

}  // namespace env
}  // namespace ouro
