// Sealed frames over a line: what the owner is notified of, and when.
#include "runtime/network/frame_stream.h"

#include <gmock/gmock.h>

#include "tests/runtime/network/lab.h"

namespace ouro::rt {
namespace {

/// A stream, and the other end of its line, which the test drives itself.
struct Pair {
  explicit Pair(asio::io_context& io) : sealer(wire::Key{2}) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    Line line;
    line.socket = Fd(ends[0]);
    line.keys = {.out = wire::Key{1}, .in = wire::Key{2}};
    peer = Fd(ends[1]);
    stream = std::make_shared<FrameStream>(io, std::move(line), wire::kMaxControl);
    stream->start([this](Result<wire::NetFrame> frame) {
      EXPECT_FALSE(inside) << "never from inside a call";
      if (frame.ok())
        ++frames;
      else
        ends_heard.push_back(frame.status());
    });
  }
  void send() {
    inside = true;
    stream->send(wire::Got{});
    inside = false;
  }
  wire::Bytes sealed(const wire::NetFrame& frame) {
    wire::Bytes bytes;
    EXPECT_TRUE(sealer.seal(wire::encode_net(frame), bytes).ok());
    return bytes;
  }
  std::shared_ptr<FrameStream> stream;
  Fd peer;
  wire::FrameSealer sealer;
  bool inside = false;
  int frames = 0;
  std::vector<Status> ends_heard;
};

TEST(FrameStream, EndIsReportedOnceAndNeverInsideACall) {
  asio::io_context io;
  Pair p(io);
  p.peer.reset();
  for (int i = 0; i < 3; ++i) p.send();
  EXPECT_TRUE(p.ends_heard.empty());
  ASSERT_TRUE(run_until(io, [&] { return !p.ends_heard.empty(); }));
  io.run_for(10ms);
  ASSERT_EQ(p.ends_heard.size(), 1u) << "once";
  EXPECT_EQ(p.ends_heard[0].reason(), Reason::peer_unresponsive);
  EXPECT_FALSE(p.stream->open());
}

TEST(FrameStream, LastFrameIsReceivedAfterSendingHasFailed) {
  asio::io_context io;
  Pair p(io);
  const wire::Bytes words = p.sealed(wire::NetRefuse{Reason::mismatch, 1, 2, false, "h", "why"});
  ASSERT_EQ(::write(p.peer.get(), words.data(), words.size()), static_cast<ssize_t>(words.size()));
  p.peer.reset();
  p.send();
  ASSERT_TRUE(run_until(io, [&] { return !p.ends_heard.empty(); }));
  EXPECT_EQ(p.frames, 1);
}

TEST(FrameStream, DamagedFrameIsReportedAsDataCorrupt) {
  for (const std::size_t at : {std::size_t{2}, std::size_t{5}, std::size_t{14}, std::size_t{30}}) {
    asio::io_context io;
    Pair p(io);
    wire::Bytes bytes = p.sealed(wire::Waiting{1, 4, "2,3"});
    bytes[at] ^= 4;
    ASSERT_EQ(::write(p.peer.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ASSERT_TRUE(run_until(io, [&] { return !p.ends_heard.empty(); }));
    EXPECT_EQ(p.ends_heard[0].reason(), Reason::data_corrupt) << at;
    EXPECT_EQ(p.frames, 0);
  }
}

}  // namespace
}  // namespace ouro::rt
