// TlsEnd: what one end of a line needs to encrypt it. Used by pipes and by those who open them.
#pragma once
#include <cstdint>

#include "transport/wire/keys.h"

namespace ouro::transport {

/// One end of a line that is to be encrypted. TLS uses an external pre-shared key (RFC 8446, 2.2) derived
/// from the line's keys, with a Diffie-Hellman exchange on top (psk_dhe_ke). A peer that has the key has
/// passed the handshake of the line and so knows the job's secret; somebody who learns that secret later
/// cannot decrypt recorded traffic. There are no certificates: a peer that does not use the pre-shared key
/// is refused.
struct TlsEnd {
  enum class Role : std::uint8_t { client, server };
  Role role = Role::client;  ///< client: the end that has connected
  wire::LineKeys keys;
  /// Records sent under one key (RFC 8446, 5.5: at most 2^24.5 of 16 KiB with AES-GCM) before the key
  /// is updated.
  std::uint64_t records_per_key = std::uint64_t{1} << 23;
};

/// The source of a read.
enum class ReadFrom : std::uint8_t {
  wire,  ///< read from the socket, too
  kept,  ///< only data that has been read from the socket already
};

}  // namespace ouro::transport
