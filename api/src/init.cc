// Joining a job: builds the context's specification from options and the environment.
// See ouro/ouro.hpp.
#include <fmt/format.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <latch>

#include "api/src/settings.h"
#include "ouro/ouro.hpp"
#include "runtime/context/context.h"
#include "runtime/core/deadline.h"
#include "runtime/core/env.h"
#include "runtime/core/fd.h"
#include "runtime/core/log.h"
#include "runtime/core/process.h"
#include "runtime/core/thread.h"
#include "runtime/group/planner.h"
#include "runtime/join/descriptors.h"
#include "runtime/join/launch.h"
#include "runtime/join/roll.h"
#include "runtime/network/interfaces.h"
#include "runtime/network/net_address.h"
#include "runtime/network/network.h"
#include "transport/wire/keys.h"

namespace ouro {
namespace {

constexpr char kIdMagic[8] = {'o', 'u', 'r', 'o', '-', 'i', 'd', '1'};
constexpr int kSecretBytes = 16;

Result<wire::Nonce> nonce_of(const UniqueId& id) {
  wire::Nonce n;
  if (std::memcmp(id.bytes, kIdMagic, sizeof kIdMagic) != 0)
    return invalid(
        "unique id made by another library, or not made at all (expected one from UniqueId::create)");
  std::memcpy(n.data(), id.bytes + sizeof kIdMagic, n.size());
  return n;
}

/// The secret that an id of UniqueId::create also contains: whoever has the id belongs to the job. Ids
/// derived from a launcher's variables contain none.
Result<wire::Secret> secret_of(const UniqueId& id) {
  const std::span<const std::uint8_t> secret(id.bytes + sizeof kIdMagic + sizeof(wire::Nonce), kSecretBytes);
  if (std::all_of(secret.begin(), secret.end(), [](std::uint8_t b) { return b == 0; })) return wire::Secret();
  return wire::Secret::from_bytes(secret);
}

/// Derives a job's nonce from the launcher's name for the job. Only processes of one user can meet under it
/// (enforced by peer credentials).
wire::Nonce nonce_of(const std::string& job_key) {
  const std::string text = fmt::format("ouro job {} of user {}", job_key, geteuid());
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  wire::Nonce n;
  std::copy_n(digest, n.size(), n.begin());
  return n;
}

Milliseconds seconds(double s) { return Milliseconds(static_cast<std::int64_t>(s * 1000)); }

/// Checks settings that a job on one host does not use but one on several hosts needs, so that errors show up
/// while the job is being tried out.
Status check_spare(const std::string& rendezvous) {
  const auto named = [](const char* name, const Status& s) {
    return s.ok() ? Status() : Status(s.reason(), fmt::format("{}: {}", name, s.failure()->text));
  };
  if (!rendezvous.empty()) OURO_TRY(named("OURO_RENDEZVOUS", rt::check_rendezvous(rendezvous)));
  auto path = env::text("OURO_SECRET_FILE"), secret = env::text("OURO_SECRET");
  for (const Status& s : {path.status(), secret.status()}) OURO_TRY(s);
  if (*path) return named("OURO_SECRET_FILE", wire::Secret::from_file(**path).status());
  return *secret ? named("OURO_SECRET", wire::Secret::from_hex(**secret).status()) : Status();
}

Status check_silence() {
  auto warn = env::real("OURO_SILENT_WARN"), fail = env::real("OURO_SILENT_FAIL");
  for (const Status& s : {warn.status(), fail.status()}) OURO_TRY(s);
  if (!env::chosen("OURO_SILENT_WARN") || **warn < **fail) return {};
  return invalid(
      fmt::format("OURO_SILENT_WARN={} and OURO_SILENT_FAIL={}: a rank would be given up before it is named; "
                  "expected a warning before the failure",
                  **warn, **fail));
}

Result<std::vector<rt::Fault>> faults_of_environment() {
  OURO_ASSIGN(const auto faults, env::text("OURO_FAULT"));
  return rt::parse_faults(faults.value_or(""));
}

/// Checks that the chosen fabric and security are usable here.
Status check_fabric(const std::string& fabric, const std::string& security) {
  return rt::fabric_usable(fabric == "tcp" ? "tcp" : "ucx", security == "tls");
}

/// Only UCX takes memory of GPUs; whether it does here is known once it has been set up.
Status check_direct(const std::string& fabric, const std::string& direct) {
  if (direct != "on" || fabric != "tcp") return {};
  return unsupported("OURO_GPU_DIRECT=on: the fabric tcp takes no GPU memory; expected OURO_FABRIC=ucx");
}

/// Fills in spec->network for a job on several hosts; for a job on one host, only checks that the settings
/// could be used.
Status network_of(const InitOptions& o, rt::ContextSpec* spec) {
  auto rendezvous = env::text("OURO_RENDEZVOUS"), host = env::text("OURO_HOSTID"),
       fabric = env::text("OURO_FABRIC"), security = env::text("OURO_SECURITY"),
       direct = env::text("OURO_GPU_DIRECT");
  auto connections = env::integer("OURO_TCP_CONNECTIONS");
  auto checks = env::flag("OURO_CHECKSUM");
  auto warn = env::real("OURO_SILENT_WARN"), fail = env::real("OURO_SILENT_FAIL");
  for (const Status& s :
       {rendezvous.status(), host.status(), fabric.status(), security.status(), direct.status(),
        connections.status(), checks.status(), warn.status(), fail.status()})
    OURO_TRY(s);
  OURO_TRY(check_silence());
  spec->silent_fail = seconds(**fail);
  // Checked on one host, too, where nothing would use it.
  OURO_TRY(check_fabric(**fabric, **security));
  OURO_TRY(check_direct(**fabric, **direct));
  if (!o.world_size || o.local_size.value_or(*o.world_size) >= *o.world_size)
    return check_spare(rendezvous->value_or(""));
  rt::NetworkOptions net;
  net.rendezvous = !o.rendezvous.empty() ? o.rendezvous : rendezvous->value_or("");
  if (net.rendezvous.empty())
    return invalid(
        fmt::format("{} of {} ranks are on this host, and nothing says where the hosts meet: set "
                    "OURO_RENDEZVOUS=HOST:PORT, an address of rank 0's host, on all of them",
                    *o.local_size, *o.world_size));
  net.host_id = !o.host_id.empty() ? o.host_id : host->value_or("");
  if (net.host_id.empty()) net.host_id = own_host_id();
  if (o.id) {
    OURO_ASSIGN(net.secret, secret_of(*o.id));
  }
  net.generation = o.generation;
  net.fabric = **fabric == "tcp" ? "tcp" : "ucx";
  net.tls = **security == "tls";
  net.gpu_direct = **direct;
  net.connections = static_cast<int>(**connections);
  net.checksums = **checks;
  net.silent_warn = seconds(**warn < **fail ? **warn : **fail / 2);  // only the failure was chosen
  net.silent_fail = seconds(**fail);
  spec->network = std::move(net);
  return {};
}

/// Builds the specification from the options and the environment; see InitOptions for which of the two wins.
Result<rt::ContextSpec> spec_of(const InitOptions& o) {
  env::report();
  OURO_TRY(env::valid());
  rt::ContextSpec spec;
  auto deadline = env::real("OURO_DEADLINE"), late = env::real("OURO_LATE"),
       joining = env::real("OURO_JOIN_DEADLINE");
  auto slot = env::integer("OURO_SLOT_BYTES"), page = env::integer("OURO_STAGING_SLOT_BYTES"),
       spin = env::integer("OURO_SPIN_US");
  auto numerics = env::text("OURO_NUMERICS"), algorithm = env::text("OURO_ALGO"),
       path = env::text("OURO_GPU_PATH");
  auto copies = env::integer("OURO_GPU_COPY_BYTES"), direct = env::integer("OURO_GPU_DIRECT_BYTES");
  for (const Status& s :
       {deadline.status(), late.status(), joining.status(), slot.status(), page.status(), spin.status(),
        numerics.status(), algorithm.status(), path.status(), copies.status(), direct.status()})
    OURO_TRY(s);
  const InitOptions defaults;
  const auto pick = [](Milliseconds option, Milliseconds fallback, const std::optional<double>& value,
                       const char* name) {
    return bounded(value && (option == fallback || env::in_environment(name)) ? seconds(*value) : option);
  };
  spec.deadline = pick(o.deadline, defaults.deadline, *deadline, "OURO_DEADLINE");
  spec.deadline_chosen = spec.deadline != defaults.deadline || env::chosen("OURO_DEADLINE");
  spec.join.late_after = pick(o.late_after, defaults.late_after, *late, "OURO_LATE");
  spec.join.deadline = pick(o.join_deadline, defaults.join_deadline, *joining, "OURO_JOIN_DEADLINE");
  if (spec.deadline.count() <= 0 || spec.join.deadline.count() <= 0)
    return invalid("deadlines must be positive");
  if (spec.join.late_after.count() < 0) return invalid("late_after is negative");
  if (o.numerics > Numerics::canonical)
    return invalid(fmt::format("numerics {}; expected one of Numerics", static_cast<int>(o.numerics)));
  spec.join.cancel = o.cancel;
  spec.numerics = o.numerics != Numerics::inherit ? o.numerics
                  : **numerics == "canonical"     ? Numerics::canonical
                                                  : Numerics::fast;
  if (*slot) spec.slot_bytes = static_cast<std::uint32_t>(**slot);
  if (*page) spec.page_bytes = static_cast<std::size_t>(**page);
  auto rules = rt::rules_in_force();
  if (!rules.ok()) return rules.status();
  spec.rules = std::move(*rules);
  OURO_ASSIGN(spec.calibration, rt::calibration_mode());
  if (*spin) spec.spin = std::chrono::microseconds(**spin);
  if (o.gpu_blocks < 0)
    return invalid(fmt::format("gpu_blocks {}; expected 0 (no limit) or more", o.gpu_blocks));
  spec.gpu_blocks = o.gpu_blocks;
  spec.gpu_path = **path;
  if (*copies) spec.gpu_copy_bytes = static_cast<std::size_t>(**copies);
  if (*direct) spec.gpu_direct_bytes = static_cast<std::size_t>(**direct);
  OURO_ASSIGN(spec.faults, faults_of_environment());
  OURO_TRY(network_of(o, &spec));
  // Ranks must agree on each of these before they can read what the others write.
  spec.join.settings = fmt::format(
      "OURO_SLOT_BYTES={} OURO_STAGING_SLOT_BYTES={} OURO_NUMERICS={} OURO_ALGO={} OURO_GPU_PATH={} "
      "OURO_GPU_COPY_BYTES={} OURO_CALIBRATION={} rules={:016x}",
      spec.slot_bytes, spec.page_bytes, name(spec.numerics), algorithm->value_or(""), spec.gpu_path,
      spec.gpu_copy_bytes, spec.calibration.setting(), spec.rules.digest());
  if (spec.network)
    spec.join.settings +=
        fmt::format(" OURO_FABRIC={} OURO_SECURITY={} OURO_TCP_CONNECTIONS={}", spec.network->fabric,
                    spec.network->tls ? "tls" : "auth", spec.network->connections);
  return spec;
}

}  // namespace

std::vector<Status> refused_settings() {
  std::vector<Status> refused;
  const auto add = [&](const Status& s) {
    const auto same = [&](const Status& other) { return other.message() == s.message(); };
    if (!s.ok() && std::none_of(refused.begin(), refused.end(), same)) refused.push_back(s);
  };
  add(rt::rules_in_force().status());
  add(rt::Planner::job_algorithm().status());
  add(rt::calibration_mode().status());
  add(faults_of_environment().status());
  add(check_silence());
  if (auto rendezvous = env::text("OURO_RENDEZVOUS"); rendezvous.ok())
    for (const std::string& meeting : {rendezvous->value_or(""), std::string()}) add(check_spare(meeting));
  const auto fabric = env::text("OURO_FABRIC"), security = env::text("OURO_SECURITY");
  if (fabric.ok() && security.ok()) add(check_fabric(**fabric, **security));
  if (const auto direct = env::text("OURO_GPU_DIRECT"); fabric.ok() && direct.ok())
    add(check_direct(**fabric, **direct));
  return refused;
}

Result<UniqueId> UniqueId::create() {
  UniqueId id;
  std::memcpy(id.bytes, kIdMagic, sizeof kIdMagic);
  OURO_TRY(wire::random_bytes({id.bytes + sizeof kIdMagic, sizeof(wire::Nonce) + kSecretBytes}));
  return id;
}

Result<Context> Context::create(const InitOptions& o) {
  occupy_standard_descriptors();
  if (!o.rank || !o.world_size)
    return invalid("rank and world_size must be given both, or neither (then: from_env)");
  if (*o.world_size < 1 || *o.world_size > kMaxRanks)
    return invalid(fmt::format("world size {}; expected 1 to {}", *o.world_size, kMaxRanks));
  if (*o.rank < 0 || *o.rank >= *o.world_size)
    return invalid(fmt::format("rank {} of {}; expected 0 to {}", *o.rank, *o.world_size, *o.world_size - 1));
  if (o.port < 0 || o.port > 65535 || (o.port > 0 && o.address.empty()))
    return invalid(fmt::format("address '{}' and port {}; expected an address and a port of 0 to 65535",
                               o.address, o.port));
  InitOptions options = o;
  if (options.rendezvous.empty() && o.port > 0) options.rendezvous = rt::with_port(o.address, o.port);
  auto spec = spec_of(options);
  if (!spec.ok()) return spec.status();
  spec->join.rank = *o.rank;
  spec->join.world = *o.world_size;
  spec->local_rank = o.local_rank.value_or(*o.rank);
  spec->local_size = o.local_size.value_or(*o.world_size);
  if (o.gpu) {
    spec->gpu = *o.gpu;
  } else if (const int gpus = gpu::gpu().devices(); gpus > 0) {
    spec->gpu = spec->local_rank % gpus;
    // Unless the user has asked for it, its absence is no error before a call needs it.
    const Status s = o.one_gpu_each ? Status() : rt::Context::load_gpu(spec->gpu);
    if (s.reason() == Reason::unsupported) {
      OURO_WARN("this rank takes no GPU: {}", s.failure()->text);
      spec->gpu = -1;
    }
  }
  if (const int gpus = gpu::gpu().devices(); o.one_gpu_each && gpus < spec->local_size)
    return invalid(
        fmt::format("one_gpu_each: {} ranks on this host, {} GPUs to be seen", spec->local_size, gpus));
  if (spec->gpu < -1) return invalid(fmt::format("GPU {}; expected a device, or -1 for none", spec->gpu));
  if (spec->local_size < 1 || spec->local_rank < 0 || spec->local_rank >= spec->local_size)
    return invalid(fmt::format("local rank {} of {}", spec->local_rank, spec->local_size));
  if (o.id) {
    OURO_ASSIGN(spec->join.job, nonce_of(*o.id));
  } else if (spec->join.world == 1) {
    OURO_ASSIGN(auto id, UniqueId::create());
    spec->join.job = *nonce_of(id);
  } else if (!o.address.empty()) {
    spec->join.job = nonce_of(o.port > 0 ? "address:" + rt::with_port(o.address, o.port)
                                         : "parent:" + identity().parent + o.address);
  } else {
    return invalid(
        "a job of several ranks needs an id (UniqueId::create on one rank, handed to all), "
        "an address, or from_env");
  }
  // The launcher's roll covers only the launcher's own job; this may be another job.
  if (auto roll = spec->join.world > 1 ? rt::Roll::of_launcher() : nullptr;
      roll && roll->world() == spec->join.world && nonce_of("ouro:" + roll->job()) == spec->join.job)
    spec->join.roll = std::move(roll);
  try {
    OURO_ASSIGN(auto impl, rt::Context::create(*spec));
    Context c(std::move(impl));
    std::vector<int> all(static_cast<std::size_t>(c.world_size()));
    for (int r = 0; r < c.world_size(); ++r) all[static_cast<std::size_t>(r)] = r;
    OURO_ASSIGN(auto world, c.group(all, "world"));
    c.world_ = std::make_unique<Group>(std::move(world));
    return c;
  } catch (const std::exception& e) {
    return Status(Reason::resource, fmt::format("joining failed: {}", e.what()));
  }
}

Result<Context> Context::from_env(const InitOptions& o) {
  if (o.rank || o.world_size) return create(o);
  OURO_ASSIGN(auto launch, discover());
  InitOptions full = o;
  full.rank = launch.rank, full.world_size = launch.size;
  if (full.rendezvous.empty()) full.rendezvous = launch.rendezvous;
  if (full.generation == 0) full.generation = static_cast<std::uint32_t>(launch.generation);
  if (!full.local_rank) full.local_rank = launch.local_rank;
  if (!full.local_size) full.local_size = launch.local_size;
  if (!full.id && launch.size > 1) {
    full.id.emplace();
    const wire::Nonce n = nonce_of(launch.job_key);
    std::memcpy(full.id->bytes, kIdMagic, sizeof kIdMagic);
    std::memcpy(full.id->bytes + sizeof kIdMagic, n.data(), n.size());
  }
  return create(full);
}

Result<std::vector<Context>> Context::threads(int n, const InitOptions& o) {
  if (n < 1 || n > 256) return invalid(fmt::format("{} ranks as threads; expected 1 to 256", n));
  if (o.rank || o.world_size || o.local_rank || o.local_size || o.id || !o.address.empty())
    return invalid("Context::threads numbers and names its ranks: expected no rank, size, id or address");
  if (n > 1) OURO_TRY(rt::provide_descriptors(rt::descriptors_of_threads(n), "ranks that are threads"));
  OURO_ASSIGN(auto id, UniqueId::create());
  std::vector<Context> contexts(static_cast<std::size_t>(n));
  std::vector<Status> outcomes(static_cast<std::size_t>(n));
  // Joining is collective: no rank begins before every rank has its thread.
  std::latch here(1);
  bool complete = false;
  const auto join = [&](int r) {
    here.wait();
    if (!complete) return;
    InitOptions mine = o;
    mine.rank = r, mine.world_size = n, mine.id = id;
    mine.local_rank.reset(), mine.local_size.reset();
    auto c = create(mine);
    const auto i = static_cast<std::size_t>(r);
    if (c.ok())
      contexts[i] = std::move(*c);
    else
      outcomes[i] = c.status();
  };
  const rt::Provided provided;
  std::vector<Thread> joiners;
  Status started;
  try {
    joiners.reserve(static_cast<std::size_t>(n));
    for (int r = 0; r < n; ++r) joiners.emplace_back("ouro-join", [&join, r] { join(r); });
    complete = true;
  } catch (const std::exception& e) {
    started = Status(Reason::resource, fmt::format("{} of {} threads: {}", joiners.size(), n, e.what()));
  }
  here.count_down();
  for (auto& t : joiners) t.join();
  OURO_TRY(started);
  for (const Status& s : outcomes) OURO_TRY(s);
  return contexts;
}

}  // namespace ouro
