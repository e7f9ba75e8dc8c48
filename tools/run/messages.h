// The messages between ouro-run and its agents, and their encoding as bytes of a pipe. Used by remote.cc,
// agent_link.cc, agent.cc.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/context/machine.h"
#include "runtime/core/env.h"
#include "runtime/core/status.h"
#include "tools/run/launcher.h"
#include "tools/run/rendezvous.h"

namespace ouro::run {

/// An agent's first line. Anything before it was written by a remote shell and is passed on to the user.
inline constexpr std::string_view kGreeting = "ouro-run agent, protocol 3";

enum class Kind : std::uint8_t {
  // from the launcher
  offer = 1,  ///< peer's name, token, interfaces (or ""): listen where other hosts may reach this one
  reach,      ///< token, then offers: which of them can be reached from here?
  start,      ///< Orders
  stop,       ///< milliseconds until SIGTERM
  signal,     ///< its number, for all ranks
  hold,       ///< "e" or "o"; then "1": stop reading this stream from the ranks, "0": resume
  left,       ///< rank, exit code: a rank of another host has ended
  // from an agent
  hello,    ///< version of ouro
  offers,   ///< offers
  reached,  ///< indexes of the offers that were reached
  refused,  ///< exit code, text (may be empty): no rank was started
  line,     ///< rank, "e" or "o", LineEnd, text
  ended,    ///< rank, exit code
  failed,   ///< exit code, text: the first failure on this host
  say,      ///< text for the user
  over,     ///< all ranks and all processes that they started have ended
};

struct Message {
  Kind kind{};
  std::vector<std::string> fields;
};

/// u32 length of what follows | u8 kind | for each field u32 length, bytes. All little-endian.
std::string encode(const Message& message);

/// Takes bytes, hands out messages.
class MessageReader {
 public:
  static constexpr std::size_t kLongest = std::size_t{64} << 20;
  void add(std::string_view bytes) { pending_ += bytes; }
  /// The next complete message, if there is one. Errors: refused (not a message of this protocol).
  Result<std::optional<Message>> next();
  /// The next line, without its newline, of the bytes that have not been read as messages.
  std::optional<std::string> next_line();

 private:
  std::string pending_;
};

/// Everything that an agent needs to start the ranks of its host.
struct Orders {
  std::string directory;  ///< working directory; it must exist
  std::string host;       ///< OURO_HOSTID
  std::string secret;     ///< of the job
  rt::Bind bind = rt::Bind::none;
  int first_rank = 0, local_size = 1, size = 1, node = 0, nodes = 1;
  Rendezvous rendezvous;
  Environment variables;  ///< in addition to the agent's own
  std::vector<std::string> argv;
};
Message to_message(const Orders& orders);
Result<Orders> to_orders(const Message& message);

Message to_message(Kind kind, std::vector<std::string> head, const std::vector<Offer>& offers);
/// The offers in the fields after the first `skip`.
Result<std::vector<Offer>> to_offers(const Message& message, std::size_t skip);

/// The number in `field`, from `low` to `high`.
Result<int> number_of(const Message& message, std::size_t field, int low, int high);

}  // namespace ouro::run
