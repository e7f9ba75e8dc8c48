// Frames between hosts: round trips, golden bytes, truncations, limits; the table in pieces.
#include "transport/wire/net_frames.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/wire/codec.h"

namespace ouro::wire {
namespace {

MemberRecord member(int rank) {
  return {rank, 100 + rank, "node", "id", fmt::format("10.0.0.1:{}", rank), "", {1, 2, 3}};
}

std::vector<NetFrame> all() {
  return {MemberOffer{4, member(1)},
          Waiting{1, 4, "2,3"},
          Source{3, 2, "10.0.0.1:2"},
          TablePiece{4, 1, 2, Bytes(80, 1)},
          Want{},
          Got{},
          NetRefuse{Reason::mismatch, 1, 2, true, "host", "no"},
          Beat{},
          Bye{},
          Note{3, 7, 4, {5, 6}}};
}

TEST(NetFrames, FramesRoundTripAndTruncatedOnesAreRefused) {
  for (const NetFrame& f : all()) {
    const Bytes b = encode_net(f);
    const auto back = decode_net(b);
    ASSERT_TRUE(back.ok()) << f.index() << back.status().message();
    EXPECT_EQ(back->index(), f.index());
    EXPECT_EQ(encode_net(*back), b);
    const bool open_ended =
        std::holds_alternative<TablePiece>(f);  // its member records are checked with the table
    for (std::size_t n = 0; n < b.size() && !open_ended; ++n)
      EXPECT_EQ(decode_net(View(b).first(n)).status().reason(), Reason::refused) << f.index() << " " << n;
    Bytes longer = b;
    longer.push_back(0);
    EXPECT_EQ(decode_net(longer).ok(), open_ended) << f.index();
  }
  EXPECT_EQ(std::get<MemberOffer>(*decode_net(encode_net(all()[0]))).member, member(1));
  const Note note = std::get<Note>(*decode_net(encode_net(all()[9])));
  EXPECT_EQ(note.order, 7u);
  EXPECT_EQ(note.body, (Bytes{5, 6}));
}

TEST(NetFrames, EncodingMatchesTheGoldenBytes) {
  EXPECT_EQ(fmt::format("{:02x}", fmt::join(encode_net(Source{3, 2, "a:1"}), "")),
            "0200"
            "03000000"
            "02000000"
            "0300"
            "613a31");
  EXPECT_EQ(fmt::format("{:02x}", fmt::join(encode_net(Bye{}), "")), "0800");
}

TEST(NetFrames, ValuesOutOfRangeAreRefused) {
  const auto refused = [](NetFrame f) { return !decode_net(encode_net(f)).ok(); };
  EXPECT_TRUE(refused(MemberOffer{0, member(1)}));
  EXPECT_TRUE(refused(MemberOffer{kMaxWorld + 1, member(1)}));
  EXPECT_TRUE(refused(MemberOffer{4, member(static_cast<int>(kMaxWorld))}));
  EXPECT_TRUE(refused(Waiting{5, 4, ""}));
  EXPECT_TRUE(refused(TablePiece{4, 4, 1, Bytes(80, 1)}));
  EXPECT_TRUE(refused(TablePiece{4, 0, 4, Bytes(20, 1)})) << "more seats than bytes";
  EXPECT_TRUE(refused(TablePiece{4, 0, 0, Bytes(20, 1)}));
  EXPECT_TRUE(refused(NetRefuse{Reason::none}));
  EXPECT_TRUE(refused(NetRefuse{Reason::refused, static_cast<std::int32_t>(kMaxWorld)}));
  EXPECT_FALSE(decode_net(Bytes{99, 0}).ok());
  Writer huge;  // a note that claims to have four billion bytes
  huge.number(std::uint16_t{9}), huge.number(std::uint16_t{1}), huge.number(std::uint64_t{0});
  huge.number(std::uint64_t{0}), huge.number(0xffffffffu);
  EXPECT_FALSE(decode_net(huge.bytes).ok());
}

TEST(NetFrames, MemberRecordsAreCheckedBeforeSending) {
  EXPECT_TRUE(check(member(1), 2).ok());
  EXPECT_FALSE(check(member(2), 2).ok());
  EXPECT_FALSE(check(member(-1), 2).ok());
  MemberRecord s = member(1);
  s.blob.resize(kMaxBlob + 1);
  EXPECT_THAT(check(s, 2).message(), testing::HasSubstr("blob of 2049 bytes; at most 2048"));
}

TEST(Table, IsAssembledFromPiecesInOrder) {
  std::vector<MemberRecord> table;
  for (int r = 0; r < 3000; ++r) table.push_back(member(r));
  const auto pieces = encode_table(table);
  EXPECT_GT(pieces.size(), 1u);
  TableReader reader(3000), reversed(3000), other(2999);
  EXPECT_FALSE(reversed.add(std::get<TablePiece>(*decode_net(pieces.back()))).ok());
  EXPECT_FALSE(other.add(std::get<TablePiece>(*decode_net(pieces.front()))).ok());
  for (const Bytes& piece : pieces) {
    EXPECT_LT(piece.size(), kMaxControl);
    EXPECT_FALSE(reader.complete());
    ASSERT_TRUE(reader.add(std::get<TablePiece>(*decode_net(piece))).ok());
  }
  ASSERT_TRUE(reader.complete());
  const auto back = reader.take();
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, table);
}

TEST(Table, DuplicateOrMissingRankIsRefused) {
  for (const auto& members :
       {std::vector<MemberRecord>{member(0), member(0)}, std::vector<MemberRecord>{member(0), member(2)}}) {
    TableReader reader(2);
    ASSERT_TRUE(reader.add(std::get<TablePiece>(*decode_net(encode_table(members).at(0)))).ok());
    EXPECT_EQ(reader.take().status().reason(), Reason::refused);
  }
}

}  // namespace
}  // namespace ouro::wire
