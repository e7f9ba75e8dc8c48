// Reads and writes checkpoint files. A file is a line of JSON, then the parts; the line has their sizes and
// the checksum. See checkpoint.h.
#include "tools/train/checkpoint.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "tools/cli/files.h"

namespace ouro::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr unsigned kVersion = 4;
constexpr std::size_t kMostBytes = 256u << 20;  // maximum size of a file; ours are never larger

std::string file_of(const std::string& stem, int rank) { return fmt::format("{}.rank{}", stem, rank); }

/// The options that must be equal for a run to be resumed, including its numerics. The number of steps is
/// included only if the schedule depends on it; the device on which it runs is not.
Json identity(const TrainOptions& o, const Group& world) {
  Json run = to_json(o, world.size());
  for (const char* free : {"device", "adaptive"}) run.erase(free);
  if (*o.schedule == Curve::constant) run.erase("steps");
  run["rank"] = world.rank();
  return run;
}

/// The checksum of the line, without its own key, and of the bytes after it.
std::uint64_t checksum(Json head, std::string_view body) {
  head.erase("checksum");
  const std::string line = head.dump(-1, ' ', false, Json::error_handler_t::replace);
  return XXH3_64bits_withSeed(body.data(), body.size(), XXH3_64bits(line.data(), line.size()));
}

Status unwritable(const Status& s) { return {Reason::resource, fmt::format("--save {}", s.failure()->text)}; }

Status write_state(const std::string& path, const Json& run, const Checkpoint& state) {
  std::string body;
  Json sizes = Json::array();
  for (const Bytes& part : state.parts) {
    sizes.push_back(part.size());
    body.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  Json head = {{"ouro-train state", kVersion}, {"run", run}, {"step", state.step}, {"parts", sizes}};
  head["checksum"] = checksum(head, body);
  const std::string line = head.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  const Status written = replace_file(path, line + body);
  return written.ok() ? Status{} : unwritable(written);
}

/// Reports the first option that differs, with both values.
Status compare(const std::string& path, const Json& saved, const Json& here) {
  const auto shown = [](const Json& j, const std::string& key) {
    return j.contains(key) ? j[key].dump(-1, ' ', false, Json::error_handler_t::replace) : "nothing";
  };
  for (const Json* side : {&here, &saved})
    for (const auto& [key, value] : side->items())
      if (shown(saved, key) != shown(here, key))
        return invalid(fmt::format("--resume {}: another run: {} was {} and is {}", path, key,
                                   shown(saved, key), shown(here, key)));
  return {};
}

Result<Checkpoint> read_state(const std::string& path, const Json& run, std::size_t parts) {
  const auto read = read_file(path, kMostBytes);
  if (!read.ok()) return Status(Reason::resource, fmt::format("--resume {}", read.status().failure()->text));
  return parse_checkpoint(path, *read, run, parts);
}

}  // namespace

Result<Checkpoint> parse_checkpoint(const std::string& path, std::string_view all,
                                    const nlohmann::ordered_json& run, std::size_t parts) {
  const auto damaged = [&](const char* why) {
    return invalid(fmt::format("--resume {}: not a state of ouro-train, or damaged: {}", path, why));
  };
  const std::size_t line = all.find('\n');
  if (line == std::string_view::npos) return damaged("no heading");
  // Deeper levels are dropped, and then the checksum is wrong: copying or printing them would
  // recurse as deep.
  constexpr int kDeepest = 8;
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= kDeepest; };
  const Json head = Json::parse(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(line), shallow, false);
  const auto is = [&](const char* key, bool (Json::*kind)() const noexcept) {
    return head.contains(key) && (head[key].*kind)();
  };
  if (!head.is_object() || !is("ouro-train state", &Json::is_number_unsigned) ||
      !is("run", &Json::is_object) || !is("step", &Json::is_number_unsigned) ||
      !is("parts", &Json::is_array) || !is("checksum", &Json::is_number_unsigned))
    return damaged("its heading");
  if (head["ouro-train state"] != kVersion) return damaged("its version");
  const std::string_view body = all.substr(line + 1);
  if (head["checksum"] != checksum(head, body)) return damaged("its checksum");
  // Called after the checksum, because a damaged file would appear to be of another run.
  OURO_TRY(compare(path, head["run"], run));
  if (!std::in_range<std::int64_t>(head["step"].get<std::uint64_t>())) return damaged("its step");
  Checkpoint state{.step = head["step"].get<std::int64_t>(), .parts = {}};
  std::size_t at = 0;
  for (const Json& size : head["parts"]) {
    if (!size.is_number_unsigned() || size.get<std::size_t>() > body.size() - at) return damaged("its sizes");
    const auto part = std::as_bytes(std::span(body).subspan(at, size.get<std::size_t>()));
    state.parts.emplace_back(part.begin(), part.end());
    at += part.size();
  }
  if (at != body.size() || state.parts.size() != parts) return damaged("its sizes");
  return state;
}

int end_of(const TrainOptions& o) { return o.stop_after > 0 ? std::min(o.stop_after, o.steps) : o.steps; }

Status try_checkpoint(Group& world, const TrainOptions& o) {
  Status mine;
  if (!o.save.empty()) {
    const Status tried = try_replace(file_of(o.save, world.rank()));
    if (!tried.ok()) mine = unwritable(tried);
  }
  return agree(world, mine);
}

Status save_checkpoint(Group& world, const TrainOptions& o, const Checkpoint& state) {
  return agree(world, write_state(file_of(o.save, world.rank()), identity(o, world), state));
}

Result<Checkpoint> load_checkpoint(Group& world, const TrainOptions& o, std::size_t parts) {
  const std::string path = file_of(o.resume, world.rank());
  auto state = read_state(path, identity(o, world), parts);
  OURO_TRY(agree(world, state.status()));
  std::int64_t first = state->step;
  const View v(&first, 1, DType::i64);
  OURO_TRY(broadcast(world, v, v, 0, kAuto));
  Status mine;
  if (first != state->step)
    mine =
        invalid(fmt::format("--resume {}: it is at step {}, rank 0's file at {}", path, state->step, first));
  else if (first >= end_of(o))
    mine = invalid(fmt::format("--resume {}: it is at step {}, the last one is {}", path, first, end_of(o)));
  OURO_TRY(agree(world, mine));
  return state;
}

}  // namespace ouro::tools
