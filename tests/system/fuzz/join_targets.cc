// Fuzz targets for data from authenticated ranks of this host and of others: frames with descriptors, streams
// of sealed frames, and memory that a peer has written. See targets.h.
#include <sys/socket.h>

#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>

#include "runtime/core/segment.h"
#include "runtime/health/replica.h"
#include "runtime/job/remarks.h"
#include "runtime/join/local_socket.h"
#include "runtime/network/frame_stream.h"
#include "tests/system/fuzz/support.h"
#include "tests/system/fuzz/targets.h"

namespace ouro::fuzz {
namespace {

constexpr std::size_t kSegment = 4096;

/// Memory as a peer may pass it: valid, without seals, of another size, or not memory at all.
Fd passed(std::uint8_t kind) {
  if (kind % 4 == 3) return Fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  Fd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  require(fd && ::ftruncate(fd.get(), kind % 4 == 2 ? 8192 : kSegment) == 0);
  if (kind % 4 != 1) ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

}  // namespace

/// One packet; the first byte gives the number and kind of its descriptors. Special values of it: no packet
/// arrives, or the descriptor is not a socket between ranks.
void local_socket(wire::View in) {
  if (in.empty()) return;
  const std::uint8_t first = in[0];
  constexpr std::uint8_t kSilent = 0x7d, kNoSocket = 0x7e, kTooMany = 0x7f;
  in = in.subspan(1);
  if (first == kNoSocket) {
    const Fd other(::open("/dev/null", O_RDWR | O_CLOEXEC));
    require(!rt::check_peer(other.get()).ok() && !rt::recv_frame(other.get(), Clock::now()).ok());
    return require(!SharedSegment::attach(Fd(), kSegment).ok());
  }
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  const Fd mine(ends[0]);
  Fd theirs(ends[1]);
  require(rt::check_peer(mine.get()).ok());
  if (first == kSilent)
    return require(
        rt::recv_frame(mine.get(), Clock::now() + std::chrono::milliseconds(1)).status().reason() ==
        Reason::deadline);
  constexpr std::size_t kMost = 8;
  std::vector<Fd> fds;
  for (std::size_t i = 0; i < (first == kTooMany ? kMost : first % 4u); ++i)
    fds.push_back(passed(static_cast<std::uint8_t>(first >> 2 >> i)));
  iovec part{const_cast<std::uint8_t*>(in.data()), in.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMost * sizeof(int))] = {};
  msghdr m{};
  m.msg_iov = &part, m.msg_iovlen = 1;
  if (!fds.empty()) {
    m.msg_control = control, m.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (std::size_t i = 0; i < fds.size(); ++i) {
      const int fd = fds[i].get();
      std::memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof fd);
    }
  }
  const bool sent = ::sendmsg(theirs.get(), &m, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
  if (first & 0x80) theirs.reset();
  auto got = rt::recv_frame(mine.get(), Clock::now());
  require(sent || !got.ok());
  if (!got.ok()) return;
  require(got->fds.size() == fds.size() && fds.size() <= rt::kMaxFds);
  for (std::size_t i = 0; i < fds.size(); ++i) {
    const auto segment = SharedSegment::attach(std::move(got->fds[i]), kSegment);
    require(segment.ok() == ((first >> 2 >> i) % 4 == 0));
    if (segment.ok()) std::memset((*segment)->data(), first, (*segment)->bytes());
  }
  if (theirs) require(rt::send_frame(mine.get(), got->frame).ok());
}

/// Data that arrives over a control line. The first byte gives the length of the pieces, and whether
/// payloads, each preceded by a length byte, are sealed correctly.
void frame_stream(wire::View in) {
  if (in.empty()) return;
  const std::uint8_t first = in[0];
  in = in.subspan(1);
  wire::Bytes stream(in.begin(), in.end());
  if (first % 2 == 1) {
    wire::FrameSealer sealer(wire::Key{3});
    stream.clear();
    while (!in.empty()) {
      const std::size_t n = std::min<std::size_t>(in[0], in.size() - 1);
      require(sealer.seal(in.subspan(1, n), stream).ok());
      in = in.subspan(1 + n);
    }
  }
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  Fd theirs(ends[1]);
  rt::asio::io_context io;
  rt::Line line;
  line.socket = Fd(ends[0]);
  line.keys = {.out = wire::Key{4}, .in = wire::Key{3}};
  constexpr std::size_t kMostQueued = 2000;
  const auto mine = std::make_shared<rt::FrameStream>(io, std::move(line), 1024, std::nullopt, kMostQueued);
  int frames = 0;
  bool over = false;
  mine->start([&](Result<wire::NetFrame> f) {
    require(!over);
    over = !f.ok();
    if (f.ok()) ++frames, mine->send(*f);
  });
  while (!stream.empty() && !over) {
    const std::size_t n = std::min<std::size_t>(first / 2 * 16 + 1u, stream.size());
    if (::send(theirs.get(), stream.data(), n, MSG_NOSIGNAL) < 0) break;
    stream.erase(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(n));
    io.poll();
  }
  theirs.reset();
  for (int i = 0; i < 100 && !over; ++i) io.poll();
  require(over);
  mine->close();
  io.poll();
}

/// A control page in shared memory written by a peer: each 11 bytes give an address (a part of the page and a
/// u16) and a value (a u64). Then does what readers do with the page, and reads the input as the remarks of a
/// rank of another host.
void pages(wire::View in) {
  static const auto page = std::make_unique<rt::ControlPage>(), copy = std::make_unique<rt::ControlPage>();
  const auto clear = [](rt::ControlPage& p) { std::memset(static_cast<void*>(&p), 0, sizeof p); };
  clear(*page);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(page.get());
  constexpr std::size_t kParts[] = {0, offsetof(rt::ControlPage, gpu), offsetof(rt::ControlPage, errors),
                                    offsetof(rt::ControlPage, groups), offsetof(rt::ControlPage, votes)};
  for (wire::View rest = in; rest.size() >= 11; rest = rest.subspan(11)) {
    std::uint16_t at = 0;
    std::memcpy(&at, rest.data() + 1, sizeof at);
    std::memcpy(bytes + kParts[rest[0] % std::size(kParts)] + at % 4096, rest.data() + 3, 8);
  }
  for (int g = 0; g < 4; ++g) {
    const rt::GroupRecord& r = page->groups[g];
    for (std::uint64_t seq = 0; seq < 2 * rt::kHistory; ++seq)
      if (const auto s = rt::entered_as(r, seq)) require(!s->text().empty() && !s->how_text().empty());
    for (const auto& h : r.history) {
      const rt::Signature s{h.what.get(), h.count.get()};
      require(!s.text().empty() && !s.how_text().empty());
      (void)s.folded();
    }
  }
  for (int v = 0; v < 4; ++v)
    if (const auto vote = rt::read(page->votes[v], page->votes[v].key.get()))
      require(vote->proven.count() <= kMaxRanks && vote->value.dead.count() <= kMaxRanks);
  rt::ReplicaPublisher publisher(*page);
  clear(*copy);
  for (const wire::Note& n : publisher.changes()) (void)rt::apply(n, *copy);
  (void)publisher.everything();
  if (const auto used = rt::read_remarks(wire::Bytes(in.begin(), in.end()), copy.get()))
    require(*used <= in.size() && copy->gpu.reach_count <= rt::GpuRecord::kReach);
}

}  // namespace ouro::fuzz
