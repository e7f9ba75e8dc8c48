// The last collectives of a program, after its main function: an atexit handler and a static object's
// destructor make them, and some fail on purpose. A separate program, because it is about the end of a
// program. Used by ctest.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ouro/ouro.h"
#include "ouro/ouro.hpp"

namespace {

int g_failures = 0;
const char* g_where = "main";

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s: %s\n", g_where, what);
  ++g_failures;
}

std::vector<ouro::Context>& contexts() {
  static auto* all = new std::vector<ouro::Context>;  // never destroyed, so it outlives its users here
  return *all;
}

/// Allocates and fills memory: if the library wrote to memory that it has freed, it would be detected here.
class Taken {
 public:
  Taken() {
    for (std::size_t bytes = 64; bytes <= (64 << 10); bytes += bytes / 4)
      for (int k = 0; k < 8; ++k) blocks_.emplace_back(bytes, kFill);
  }
  bool whole() const {
    for (const auto& block : blocks_)
      for (const unsigned char c : block)
        if (c != kFill) return false;
    return true;
  }

 private:
  static constexpr unsigned char kFill = 0x5a;
  std::vector<std::vector<unsigned char>> blocks_;
};

/// Two ranks in one thread, so in a batch; repeats earlier calls and makes new ones.
void make_collectives() {
  for (int count : {1, 2, 3, 500}) {
    std::vector<float> in(500, 1), out[2] = {in, in};
    ouro::group_start();
    for (std::size_t r = 0; r < 2; ++r) {
      ouro::Group& g = contexts()[r].world();
      const auto n = static_cast<std::size_t>(count);
      (void)all_reduce(g, ouro::CView(in.data(), n, ouro::DType::f32),
                       ouro::View(out[r].data(), n, ouro::DType::f32));
    }
    expect(ouro::group_end().ok(), "a batch of two ranks fails");
    expect(out[0][0] == 2 && out[1][static_cast<std::size_t>(count) - 1] == 2, "wrong sums");
  }
  static float same[4] = {1, 1, 1, 1}, result[4];
  ouro::Group& alone = contexts()[2].world();
  for (int turn = 0; turn < 3; ++turn)
    for (std::size_t n = 1; n <= 4; ++n) {
      expect(
          all_reduce(alone, ouro::CView(same, n, ouro::DType::f32), ouro::View(result, n, ouro::DType::f32))
              .ok(),
          "a collective fails");
      expect(result[n - 1] == 1, "wrong result");
    }
}

void make_errors() {
  const bool first = g_where == std::string("main");
  expect(first || std::strstr(ouro_last_error(), "work_wait") != nullptr, "what main was told last is lost");
  expect(ouro_barrier(nullptr, nullptr, nullptr) != 0, "a barrier of no group works");
  expect(std::strstr(ouro_last_error(), "barrier") != nullptr, "ouro_last_error() does not name the barrier");
  expect(std::strstr(ouro_last_error_json(), "barrier") != nullptr, "nor does its JSON");
  expect(ouro_work_wait(nullptr, 0) != 0, "waiting for no work works");
  expect(std::strstr(ouro_last_error(), "work_wait") != nullptr, "ouro_last_error() is that of before");
}

void last_calls(const char* where) {
  g_where = where;
  const Taken taken;
  make_collectives();
  make_errors();
  const int self[] = {0};
  // Needs parameters, which the library has kept since its start.
  auto group = contexts()[2].group(self, where);
  expect(group.ok() && barrier(*group).ok(), "no new group");
  expect(taken.whole(), "memory of the program was written to");
}

/// Constructed before the library is first used, so it is destroyed last.
struct Last {
  ~Last() {
    last_calls("a static object's destructor");
    contexts().clear();
    std::_Exit(g_failures > 0 ? 1 : 0);  // main returned a different code
  }
} g_last;

}  // namespace

int main() {
  std::atexit([] { last_calls("an atexit handler"); });
  auto pair = ouro::Context::threads(2);
  auto alone = ouro::Context::threads(1);
  if (!pair.ok() || !alone.ok()) return 1;
  contexts() = std::move(*pair);
  contexts().push_back(std::move((*alone)[0]));
  make_collectives();
  make_errors();
  std::atexit([] { last_calls("a later atexit handler"); });
  ouro::group_start();  // this batch never ends
  float x = 1, y = 0;
  (void)all_reduce(contexts()[2].world(), ouro::CView(&x, 1, ouro::DType::f32),
                   ouro::View(&y, 1, ouro::DType::f32));
  return 3;
}
