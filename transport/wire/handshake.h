// The handshake of two ranks on a new connection: both prove that they know the job's secret, agree on a
// version and derive the line's keys. Without sockets or clocks; driven by
// runtime/network/handshake_session.h and by the fuzzers.
//
//   HELLO    s>c  server_nonce[32] job[16] generation features versions[1..8]
//   PROVE    c>s  client_nonce[32] job[16] generation features version purpose rank world to_rank pid process
//                 host host_id mac = HMAC(K, "ouro c1" | HELLO | PROVE without mac)
//   WELCOME  s>c  rank world pid version host host_id
//                 mac = HMAC(K, "ouro s1" | HELLO | PROVE | WELCOME without mac)
//   REFUSE   either way: code text
//
// K = HKDF(secret, "ouro job" | job | generation); the keys are HKDF(K, "ouro key" | direction | HELLO |
// PROVE). Frames have the header of frames.h. Settings are not compared here: they are sent whole in the
// request to join, whose handler can report both sides of a difference.
//
// A verdict (refused) is one end's decision on a frame that arrived whole, or on the bytes of another
// protocol. A frame that was damaged in transit (data-corrupt) proves nothing about either end: another
// attempt may succeed.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "transport/wire/keys.h"

namespace ouro::wire {

/// The purpose of a line. It is part of what is proved, so a line cannot be used for another purpose.
enum class Purpose : std::uint8_t { join, control, data, table };

/// How this rank presents itself to others.
struct Identity {
  Nonce job{};
  std::uint32_t generation = 0;
  int rank = 0, world = 1;
  std::string host, host_id;  ///< cut at kMaxName bytes on the wire
  int pid = 0;
  std::uint64_t process = 0;  ///< process_number(): distinguishes processes with equal pids
  Secret secret;              ///< if empty, everybody who knows the job's id is trusted
};

enum class RefuseCode : std::uint8_t {
  bad_version,
  wrong_job,
  busy,
  bad_mac,         // may be sent to a peer that does not know the secret: it learns nothing new
  duplicate_rank,  // from here on: sent only to peers that have proved that they know the secret
  rank_range,
  config,
};
const char* name(RefuseCode);

/// The detector of a refusal by something outside this job: another program, or another job.
inline constexpr const char* kForeign = "foreign answer";

/// Limits of handshake frames, whose types differ from those of frames.h. They have at most kMaxHandshake
/// bytes with the header.
inline constexpr std::size_t kMaxHandshake = 512, kMaxHandshakeText = 200, kMaxVersions = 8;
/// major << 8 | minor. Equal majors are compatible; the lower minor of the two is used.
using Version = std::uint16_t;
inline constexpr Version kVersion = Version{kMajor} << 8 | kMinor;

struct HandshakeOptions {
  std::function<Status(std::span<std::uint8_t>)> random = random_bytes;
  std::vector<Version> versions{kVersion};
};

/// One end of a handshake. Read at most `wants()` bytes from the socket (so that nothing after the handshake
/// is consumed), pass them to step(), write `out` in every phase, and repeat until done or refused.
class Handshake {
 public:
  enum class Phase : std::uint8_t { ongoing, done, refused };
  struct Step {
    Phase phase = Phase::ongoing;
    Bytes out;   ///< to be sent, also when refused (it then holds the reason for the peer)
    Status why;  ///< refused: a verdict (refused), damage (data-corrupt), or resource
    std::optional<RefuseCode>
        code;  ///< refused: the code, from the peer or from this end; none if the input was no handshake
  };
  /// The peer's identity when done; proved by the MAC.
  struct Peer {
    int rank = -1, world = 0, pid = 0;
    std::uint64_t process = 0;  ///< as the client states it; 0 for a server
    std::string host, host_id;
    Purpose purpose = Purpose::join;
    Version version = 0;
    LineKeys keys;
  };

  static Handshake server(Identity, HandshakeOptions = {});
  /// `to_rank` is the rank that should answer; if another rank answers, both ends refuse.
  static Handshake client(Identity, Purpose, int to_rank, HandshakeOptions = {});
  ~Handshake();
  Handshake(Handshake&&) noexcept = default;
  Handshake& operator=(Handshake&&) noexcept = default;

  /// Processes received bytes. The first call of a server has none, and produces HELLO.
  Step step(View in);
  std::size_t wants() const;
  const Peer& peer() const { return peer_; }
  /// The peer has sent at least one byte.
  bool spoken() const { return spoken_; }
  bool over() const { return over_; }

 private:
  Handshake(Identity, HandshakeOptions, bool server);
  Step hello();
  Step header();
  Step frame();
  Step on_hello(View payload);
  Step on_prove(View payload);
  Step on_welcome(View payload);
  Step on_refuse(View payload);
  Step refuse(RefuseCode, std::string text);  // notifies the peer
  Step verdict(RefuseCode, std::string text);
  Step give_up(Status why);  // does not notify the peer
  Status job_key();
  Status derive();

  Identity self_;
  HandshakeOptions options_;
  bool server_, spoken_ = false, over_ = false, hello_seen_ = false;
  int to_rank_ = 0;
  Bytes kept_, hello_, prove_;  // the incoming frame; payloads of the transcript
  Key key_{};                   // K
  Peer peer_;
};

/// A REFUSE frame, for a server that has no time for a handshake.
Bytes refusal(RefuseCode, std::string_view text);

/// The protocol that unknown first bytes look like: "HTTP", "TLS", "SSH", ..., or "nothing known".
/// For the log.
const char* looks_like(View);

}  // namespace ouro::wire
