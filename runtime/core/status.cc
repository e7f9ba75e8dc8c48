// Status in words and as JSON: one failure, one line. Used wherever a failure is printed or logged.
#include "runtime/core/status.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace ouro {
namespace {

std::string duration(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

/// Returns "rank 3 (node7, pid 4121)", as far as this is known; "" if nothing is.
std::string culprit(const Failure& f) {
  std::string where = f.host;
  if (f.pid > 0) where += fmt::format("{}pid {}", where.empty() ? "" : ", ", f.pid);
  if (f.rank >= 0)
    return where.empty() ? fmt::format("rank {}", f.rank) : fmt::format("rank {} ({})", f.rank, where);
  return where;
}

/// Returns "in group dp/4, all_reduce seq 1182", as far as this is known. The number after the slash is
/// the generation.
std::string scene(const Failure& f) {
  std::string out;
  if (!f.group.empty()) {
    out = f.generation > 0 ? fmt::format("in group {}/{}", f.group, f.generation)
                           : fmt::format("in group {}", f.group);
  }
  if (!f.op.empty()) {
    out += fmt::format("{}{}", out.empty() ? "in " : ", ", f.op);
    if (f.seq > 0) out += fmt::format(" seq {}", f.seq);
  }
  return out;
}

std::vector<int> others_dead(const Failure& f) {
  std::vector<int> others;
  for (int rank : f.dead) {
    if (rank != f.rank) others.push_back(rank);
  }
  return others;
}

}  // namespace

const char* name(Code code) {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::invalid:
      return "invalid";
    case Code::unsupported:
      return "unsupported";
    case Code::timeout:
      return "timeout";
    case Code::peer_lost:
      return "peer-lost";
    case Code::system:
      return "system";
    case Code::cuda:
      return "cuda";
    case Code::aborted:
      return "aborted";
  }
  return "?";
}

const char* name(Reason reason) {
  switch (reason) {
    case Reason::none:
      return "none";
    case Reason::peer_dead:
      return "peer-dead";
    case Reason::peer_unresponsive:
      return "peer-unresponsive";
    case Reason::link_lost:
      return "link-lost";
    case Reason::mismatch:
      return "mismatch";
    case Reason::deadline:
      return "deadline";
    case Reason::data_corrupt:
      return "data-corrupt";
    case Reason::ring_corrupt:
      return "ring-corrupt";
    case Reason::refused:
      return "refused";
    case Reason::never_joined:
      return "never-joined";
    case Reason::resource:
      return "resource";
    case Reason::forked:
      return "forked";
    case Reason::fenced:
      return "fenced";
    case Reason::no_quorum:
      return "no-quorum";
    case Reason::revoked:
      return "revoked";
    case Reason::invalid:
      return "invalid";
    case Reason::unsupported:
      return "unsupported";
    case Reason::device:
      return "device";
  }
  return "?";
}

Code code_of(Reason reason) {
  switch (reason) {
    case Reason::none:
      return Code::ok;
    case Reason::peer_dead:
    case Reason::peer_unresponsive:
    case Reason::link_lost:
      return Code::peer_lost;
    case Reason::deadline:
    case Reason::never_joined:
      return Code::timeout;
    case Reason::data_corrupt:
    case Reason::ring_corrupt:
    case Reason::resource:
      return Code::system;
    case Reason::mismatch:
    case Reason::refused:
    case Reason::forked:
    case Reason::invalid:
      return Code::invalid;
    case Reason::fenced:
    case Reason::no_quorum:
    case Reason::revoked:
      return Code::aborted;
    case Reason::unsupported:
      return Code::unsupported;
    case Reason::device:
      return Code::cuda;
  }
  return Code::system;
}

void detail::no_value(const Status* why) noexcept {
  // If there is no memory for the text, the exception is thrown here, which ends the program as well.
  const std::string text = why ? why->message() : "a Result that was moved from";
  std::fprintf(stderr, "%s\nouro: the value of this failed Result was used; ask ok() first\n", text.c_str());
  std::abort();
}

std::string Status::message() const {
  if (ok()) return "ouro: ok";
  const Failure& f = *failure();
  std::string line = fmt::format("ouro: {}", name(f.reason));
  const std::string who = culprit(f), where = scene(f);
  if (!who.empty() || !where.empty()) {
    line += fmt::format(": {}{}{}", who, who.empty() || where.empty() ? "" : " ", where);
  }
  if (!f.text.empty()) line += ": " + f.text;

  std::string how;
  if (!f.detector.empty()) how = "detector " + f.detector;
  if (f.elapsed_s > 0) how += fmt::format("{}after {}", how.empty() ? "" : ", ", duration(f.elapsed_s));
  if (!how.empty()) line += fmt::format(" ({})", how);

  const std::vector<int> dead = others_dead(f);
  if (!dead.empty()) line += fmt::format("; also dead: {}", fmt::join(dead, ", "));
  return line;
}

std::string Status::json() const {
  if (ok()) return nlohmann::ordered_json{{"code", name(Code::ok)}}.dump();
  const Failure& f = *failure();
  nlohmann::ordered_json j{{"code", name(code())}, {"reason", name(f.reason)}, {"text", f.text}};
  if (f.rank >= 0) j["rank"] = f.rank;
  if (!f.host.empty()) j["host"] = f.host;
  if (f.pid > 0) j["pid"] = f.pid;
  if (!f.group.empty()) {
    j["group"] = f.group;
    j["generation"] = f.generation;
  }
  if (!f.op.empty()) {
    j["op"] = f.op;
    j["seq"] = f.seq;
  }
  if (!f.detector.empty()) j["detector"] = f.detector;
  if (f.elapsed_s > 0) j["elapsed_s"] = f.elapsed_s;
  if (!f.dead.empty()) j["dead"] = f.dead;
  // Host names and texts may have been received from outside: bytes that are not UTF-8 are replaced instead
  // of throwing.
  return j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace ouro
