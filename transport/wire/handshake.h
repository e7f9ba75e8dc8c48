// The handshake of two ranks on a new connection: both prove that they know the job's secret, agree on a
// version and derive the line's keys. Without sockets or clocks; driven by runtime/net_line and by the
// fuzzers.
//
//   HELLO    s>c  server_nonce[32] job[16] generation features versions[1..8]
//   PROVE    c>s  client_nonce[32] job[16] generation features version purpose rank world to_rank pid started
//                 host host_id mac = HMAC(K, "ouro c1" | HELLO | PROVE without mac)
//   WELCOME  s>c  rank world pid version host host_id
//                 mac = HMAC(K, "ouro s1" | HELLO | PROVE | WELCOME without mac)
//   REFUSE   either way: code text
//
// K = HKDF(secret, "ouro job" | job | generation); the keys are HKDF(K, "ouro key" | direction | HELLO |
// PROVE). Frames have the header of frames.h. Settings are not compared here: they travel whole in the
// request to join, where both sides of a difference can be told.
//
// A verdict (refused) is what one end decides on a frame that has come whole, or the bytes of another
// protocol. A frame that was damaged on its way (data-corrupt) says nothing about either end: another attempt
// may.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "transport/wire/keys.h"

namespace ouro::wire {

/// What a line is for. Part of what is proved: a line cannot be used for another purpose.
enum class Purpose : std::uint8_t { join, control, data, table };

/// Who this rank is to others.
struct Identity {
  Nonce job{};
  std::uint32_t generation = 0;
  int rank = 0, world = 1;
  std::string host, host_id;  ///< cut at kMaxName bytes on the wire
  int pid = 0;
  std::uint64_t started = 0;  ///< when the process began, in the host's own unit; tells reused pids apart
  Secret secret;              ///< none: everybody who knows the job's id is believed
};

enum class RefuseCode : std::uint8_t {
  bad_version,
  wrong_job,
  busy,
  bad_mac,         // who does not know the secret may hear so: it knows already
  duplicate_rank,  // from here on: only to those who have proved that they know the secret
  rank_range,
  config,
};
const char* name(RefuseCode);

/// The detector of a refusal by somebody who is no part of this job: another program, another job.
inline constexpr const char* kForeign = "foreign answer";

/// Handshake frames: types apart from those of frames.h, at most kMaxHandshake bytes with the header.
inline constexpr std::size_t kMaxHandshake = 512, kMaxHandshakeText = 200, kMaxVersions = 8;
/// major << 8 | minor. Equal majors understand each other; the lower minor of the two is spoken.
using Version = std::uint16_t;
inline constexpr Version kVersion = Version{kMajor} << 8 | kMinor;

struct HandshakeOptions {
  std::function<Status(std::span<std::uint8_t>)> random = random_bytes;
  std::vector<Version> versions{kVersion};
};

/// One end. Read at most `wants()` bytes from the socket (so that nothing behind the handshake is read), give
/// them to step(), write `out` whatever the state is, and go on until done or refused.
class Handshake {
 public:
  enum class State : std::uint8_t { going, done, refused };
  struct Step {
    State state = State::going;
    Bytes out;                       ///< to be sent, also when refused (then it tells the peer why)
    Status why;                      ///< refused: a verdict (refused), damage (data-corrupt), or resource
    std::optional<RefuseCode> code;  ///< refused: the peer's or ours; none if what came was no handshake
  };
  /// What is known of the peer when done; proved by the MAC.
  struct Peer {
    int rank = -1, world = 0, pid = 0;
    std::uint64_t started = 0;  ///< as the client tells; 0 of a server
    std::string host, host_id;
    Purpose purpose = Purpose::join;
    Version version = 0;
    LineKeys keys;
  };

  static Handshake server(Identity, HandshakeOptions = {});
  /// `to_rank` is who should answer; another rank refuses and is refused.
  static Handshake client(Identity, Purpose, int to_rank, HandshakeOptions = {});
  ~Handshake();
  Handshake(Handshake&&) noexcept = default;
  Handshake& operator=(Handshake&&) noexcept = default;

  /// The first call of a server, with nothing, makes it say HELLO.
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
  Step refuse(RefuseCode, std::string text);  // and tell the peer
  Step verdict(RefuseCode, std::string text);
  Step give_up(Status why);  // without a word
  Status job_key();
  Status derive();

  Identity self_;
  HandshakeOptions options_;
  bool server_, spoken_ = false, over_ = false, hello_seen_ = false;
  int to_rank_ = 0;
  Bytes kept_, hello_, prove_;  // the frame that is coming; payloads of the transcript
  Key key_{};                   // K
  Peer peer_;
};

/// A REFUSE frame, for a server that has no time for a handshake.
Bytes refusal(RefuseCode, std::string_view text);

/// What strange first bytes look like: "HTTP", "TLS", "SSH", ..., or "nothing known". For the log.
const char* looks_like(View);

}  // namespace ouro::wire
