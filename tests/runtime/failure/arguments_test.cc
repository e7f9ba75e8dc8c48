// Wrong arguments on one rank: the call is refused, nothing is sent, and the error is not sticky. Also calls
// in forked children.
#include <sys/wait.h>
#include <unistd.h>

#include <limits>

#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

struct Wrong {
  const char* name;
  Reason reason;
  std::function<Status(Group&, std::vector<float>&)> call;
};
constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();

std::vector<Wrong> wrong_calls() {
  const auto f32 = DType::f32;
  return {
      {"null input", Reason::invalid,
       [=](Group& g, auto& b) { return all_reduce(g, CView(nullptr, 4, f32), View(b.data(), 4, f32)); }},
      {"null output", Reason::invalid,
       [=](Group& g, auto& b) { return all_reduce(g, CView(b.data(), 4, f32), View(nullptr, 4, f32)); }},
      {"overlap", Reason::invalid,
       [=](Group& g, auto& b) { return all_reduce(g, CView(b.data(), 4, f32), View(b.data() + 1, 4, f32)); }},
      {"overlap of a block", Reason::invalid,
       [=](Group& g, auto& b) { return all_gather(g, CView(b.data() + 1, 4, f32), View(b.data(), 8, f32)); }},
      {"counts differ", Reason::invalid,
       [=](Group& g, auto& b) { return all_reduce(g, CView(b.data(), 4, f32), View(b.data() + 8, 5, f32)); }},
      {"blocks do not fit", Reason::invalid,
       [=](Group& g, auto& b) { return all_gather(g, CView(b.data(), 4, f32), View(b.data() + 8, 9, f32)); }},
      {"count overflows", Reason::invalid,
       [=](Group& g, auto& b) {
         return all_reduce(g, CView(b.data(), kHuge, f32), View(b.data(), kHuge, f32));
       }},
      {"count times ranks overflows", Reason::invalid,
       [=](Group& g, auto& b) {
         return all_gather(g, CView(b.data(), kHuge / 8, f32), View(b.data(), kHuge / 8 * 2, f32));
       }},
      {"sum of counts overflows", Reason::invalid,
       [=](Group& g, auto& b) {
         const std::size_t counts[] = {kHuge, kHuge};
         return all_gather_v(g, CView(b.data(), 1, f32), View(b.data() + 8, 2, f32), counts);
       }},
      {"counts for other ranks", Reason::invalid,
       [=](Group& g, auto& b) {
         const std::size_t counts[] = {1, 1, 1};
         return all_gather_v(g, CView(b.data(), 1, f32), View(b.data() + 8, 3, f32), counts);
       }},
      {"root below", Reason::invalid,
       [=](Group& g, auto& b) { return broadcast(g, CView(b.data(), 4, f32), View(b.data(), 4, f32), -1); }},
      {"root above", Reason::invalid,
       [=](Group& g, auto& b) {
         return reduce(g, CView(b.data(), 4, f32), View(b.data(), 4, f32), ReduceOp::sum, 2);
       }},
      {"element types differ", Reason::invalid,
       [=](Group& g, auto& b) {
         return all_reduce(g, CView(b.data(), 4, f32), View(b.data() + 8, 4, DType::i32));
       }},
      {"no such element type", Reason::invalid,
       [=](Group& g, auto& b) {
         const auto none = static_cast<DType>(200);
         return all_reduce(g, CView(b.data(), 4, none), View(b.data(), 4, none));
       }},
      {"op does not apply", Reason::invalid,
       [=](Group& g, auto& b) {
         return all_reduce(g, CView(b.data(), 4, f32), View(b.data(), 4, f32), ReduceOp::bxor);
       }},
      {"no such op", Reason::invalid,
       [=](Group& g, auto& b) {
         ReduceOp none;
         none.kind = static_cast<OpKind>(99);
         return all_reduce(g, CView(b.data(), 4, f32), View(b.data(), 4, f32), none);
       }},
      {"uneven cut", Reason::invalid,
       [=](Group& g, auto& b) { return all_to_all(g, CView(b.data(), 5, f32), View(b.data() + 8, 5, f32)); }},
      {"memory of a GPU that the rank does not have", Reason::invalid,
       [=](Group& g, auto& b) {
         const Device gpu{Device::Kind::cuda, 0};
         return all_reduce(g, CView(b.data(), 4, f32, gpu), View(b.data(), 4, f32, gpu));
       }},
      {"no such algorithm", Reason::invalid,
       [=](Group& g, auto& b) {
         return all_reduce(g, CView(b.data(), 4, f32), View(b.data(), 4, f32), ReduceOp::sum,
                           {.algorithm = "spiral"});
       }},
      {"algorithm of another collective", Reason::invalid,
       [=](Group& g, auto& b) {
         return broadcast(g, CView(b.data(), 4, f32), View(b.data(), 4, f32), 0, {.algorithm = "oneshot"});
       }},
      {"algorithm against the numerics", Reason::invalid,
       [=](Group& g, auto& b) {
         return all_reduce(g, CView(b.data(), 4, f32), View(b.data(), 4, f32), ReduceOp::sum,
                           {.numerics = Numerics::canonical, .algorithm = "ring"});
       }},
      {"send to nobody", Reason::invalid,
       [=](Group& g, auto& b) { return send(g, CView(b.data(), 4, f32), 2); }},
      {"send to any", Reason::invalid,
       [=](Group& g, auto& b) { return send(g, CView(b.data(), 4, f32), kAnySource); }},
      {"negative tag", Reason::invalid,
       [=](Group& g, auto& b) { return send(g, CView(b.data(), 4, f32), 1, -5); }},
      {"null message", Reason::invalid, [=](Group& g, auto&) { return send(g, CView(nullptr, 4, f32), 1); }},
      {"receive from nobody", Reason::invalid,
       [=](Group& g, auto& b) { return recv(g, View(b.data(), 4, f32), -2).status(); }},
      {"color", Reason::invalid, [=](Group& g, auto&) { return g.split(-2, 0).status(); }},
  };
}

TEST(Arguments, WrongOnesAreRefusedWithoutAStickyError) {
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  on_threads(2, [&](int rank) {
    Group& g = contexts[static_cast<std::size_t>(rank)].world();
    std::vector<float> buffer(64);
    for (const Wrong& w : wrong_calls()) {
      if (rank == 0) {  // on one rank only: no other rank waits for it
        EXPECT_THAT(w.call(g, buffer), Fails(w.reason)) << w.name;
      }
      EXPECT_TRUE(g.status().ok()) << w.name;
      EXPECT_TRUE(exact_all_reduce(g).ok()) << w.name << ": " << g.status().message();
    }
  });
}

TEST(Arguments, RefusalNamesTheOperation) {
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  Group& g = contexts[0].world();
  std::vector<float> b(16);
  const auto f32 = DType::f32;
  const std::size_t three[] = {1, 1, 1}, huge[] = {kHuge, kHuge}, two[] = {1, 1};
  const auto text = [](const Status& s) { return s.failure() ? s.failure()->text : "ok"; };
  const CView in(b.data(), 4, f32);
  const View out(b.data() + 8, 4, f32);
  EXPECT_EQ(text(all_reduce(g, CView(nullptr, 4, f32), out)), "all_reduce: input: null buffer with count 4");
  EXPECT_EQ(text(all_reduce(g, in, View(b.data() + 8, 3, f32))),
            "all_reduce: output has 3 elements; expected 4 (as many as the input)");
  EXPECT_EQ(text(all_gather_v(g, CView(b.data(), 1, f32), out, three)), "all_gather: 3 counts for 2 ranks");
  EXPECT_EQ(text(all_gather_v(g, CView(b.data(), 1, f32), out, huge)), "all_gather: the counts overflow");
  EXPECT_EQ(text(all_to_all_v(g, CView(b.data(), 2, f32), out, two, three)),
            "all_to_all: 3 receive counts for 2 ranks");
}

TEST(Arguments, WrongArgumentsOfGroupsAndMemoryAreRefused) {
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  const std::vector<int> none, twice = {0, 0}, outside = {0, 2}, negative = {-1, 0}, others = {1};
  for (const auto* ranks : {&none, &twice, &outside, &negative, &others})
    EXPECT_THAT(contexts[0].group(*ranks).status(), Fails(Reason::invalid)) << testing::PrintToString(*ranks);
  EXPECT_THAT(contexts[0].alloc(0).status(), Fails(Reason::invalid));
  EXPECT_THAT(contexts[0].alloc(std::size_t{1} << 60).status(), Fails(Reason::invalid));
  EXPECT_THAT(contexts[0].alloc(std::size_t{1} << 46).status(), Fails(Reason::resource));
  EXPECT_THAT(Stream::create(Priority::normal, "ok").status(), Fails(Reason::none));
  EXPECT_THAT(StreamPool::create(0).status(), Fails(Reason::invalid));
}

TEST(Arguments, ExceedingTheLimitOfGroupsIsARecoverableError) {
  Watchdog watchdog;
  auto context = thread_contexts(1);
  const int alone[] = {0};
  std::vector<Group> groups;
  Status s;
  for (int i = 0; i < 2000 && s.ok(); ++i) {
    auto g = context[0].group(alone, "g");
    s = g.status();
    if (g.ok()) groups.push_back(std::move(*g));
  }
  EXPECT_THAT(s, Fails(Reason::resource));
  EXPECT_TRUE(has(s.message(), "1024 groups")) << s.message();
  groups.clear();
  auto g = context[0].group(alone, "g");
  ASSERT_TRUE(g.ok()) << g.status().message();
  EXPECT_TRUE(exact_all_reduce(*g).ok());
}

/// Everything that a forked child may not do: it gets `forked`, and its parent notices nothing.
int child_of_a_rank(Context& c, Group& g, Memory& memory) {
  int value = 0;
  const int all[] = {0, 1};
  EXPECT_THAT(barrier(g), Fails(Reason::forked));
  EXPECT_THAT(exact_all_reduce(g), Fails(Reason::forked));
  EXPECT_THAT(send(g, CView(&value, 1, DType::i32), 1), Fails(Reason::forked));
  EXPECT_THAT(recv(g, View(&value, 1, DType::i32), 1).status(), Fails(Reason::forked));
  EXPECT_THAT(probe(g, 1).status(), Fails(Reason::forked));
  EXPECT_THAT(g.split(0, 0).status(), Fails(Reason::forked));
  EXPECT_THAT(g.shrink().status(), Fails(Reason::forked));
  EXPECT_THAT(c.group(all, "child").status(), Fails(Reason::forked));
  EXPECT_THAT(c.alloc(4096).status(), Fails(Reason::forked));
  g.abort("a child has no say");
  memory = Memory();
  EXPECT_TRUE(g.close().ok());
  g = Group();
  EXPECT_TRUE(c.close().ok());
  c = Context();
  return testing::Test::HasFailure() ? 1 : 0;
}

TEST(Fork, ChildIsRefusedAndParentUndisturbed) {
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  const int all[] = {0, 1};
  std::vector<Group> groups;
  std::vector<Memory> memory;
  for (auto& c : contexts)
    groups.push_back(std::move(*c.group(all, "g"))), memory.push_back(std::move(*c.alloc(8192)));
  const auto work = [&] {
    on_threads(2, [&](int rank) {
      const auto i = static_cast<std::size_t>(rank);
      for (int k = 0; k < 20; ++k) {
        EXPECT_TRUE(exact_all_reduce(contexts[i].world()).ok());
        EXPECT_TRUE(exact_all_reduce(groups[i], 20'000).ok());
      }
      const auto mine = memory[i].as<float>();
      EXPECT_TRUE(all_reduce(groups[i], mine, mine).ok());
    });
  };
  work();
  for (const bool calls : {true, false}) {
    std::fflush(nullptr);
    const int pid = fork();
    if (pid == 0) {
      const int code = calls ? child_of_a_rank(contexts[0], groups[0], memory[0]) : 0;
      std::fflush(nullptr);
      _exit(code);
    }
    int status = 0;
    work();
    ASSERT_TRUE(eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; })) << "the child hangs";
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
    work();
  }
}

}  // namespace
}  // namespace ouro::test
