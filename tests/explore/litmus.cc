// Litmus tests. See litmus.h. The expected outcomes are those of C++20 without cycles of program order and
// reads-from: values out of thin air do not occur, and neither does load buffering, which the standard would
// allow for relaxed accesses.
#include "tests/explore/litmus.h"

#include <sched.h>

#include <atomic>
#include <functional>
#include <mutex>

namespace explore {
namespace {

constexpr auto rlx = std::memory_order_relaxed, acq = std::memory_order_acquire,
               rel = std::memory_order_release, ar = std::memory_order_acq_rel,
               sc = std::memory_order_seq_cst;
using Word = std::atomic<int>;

struct Words {
  Word x, y, z;
  int data;
  std::mutex mutex;
  int r[8];  // values that the threads read, each into its own elements
};

/// A litmus test as a list of functions, one for each thread.
class Test final : public Program {
 public:
  using Thread = void (*)(Words&);
  using Finish = void (*)(Words&);
  Test(std::vector<Thread> threads, int results, Finish finish = nullptr)
      : threads_(std::move(threads)), results_(results), finish_(finish) {}
  int fibers() const override { return static_cast<int>(threads_.size()); }
  void set_up() override {
    words_ = make<Words>("words");
    label(&words_->x, sizeof(Word), "x"), label(&words_->y, sizeof(Word), "y"),
        label(&words_->z, sizeof(Word), "z");
  }
  void run(int fiber) override { threads_[static_cast<std::size_t>(fiber)](*words_); }
  void finish() override {
    if (finish_) finish_(*words_);
  }
  std::string outcome() override {
    std::string s;
    for (int i = 0; i < results_; ++i) s += std::to_string(words_->r[i]);
    return s;
  }

 private:
  std::vector<Thread> threads_;
  int results_;
  Finish finish_;
  Words* words_ = nullptr;
};

using W = Words&;
Program* test(int results, std::vector<Test::Thread> threads, Test::Finish finish = nullptr) {
  return new Test(std::move(threads), results, finish);
}

// For `finish`: the final values of x and y.
void last_values(W w) { w.r[0] = w.x.load(rlx), w.r[1] = w.y.load(rlx); }

}  // namespace

std::vector<Litmus> litmus_tests() {
  const std::set<std::string> kAll2 = {"00", "01", "10", "11"};
  return {
      {"store buffering, relaxed",
       test(2, {[](W w) { w.x.store(1, rlx), w.r[0] = w.y.load(rlx); },
                [](W w) { w.y.store(1, rlx), w.r[1] = w.x.load(rlx); }}),
       kAll2},
      {"store buffering, release and acquire",
       test(2, {[](W w) { w.x.store(1, rel), w.r[0] = w.y.load(acq); },
                [](W w) { w.y.store(1, rel), w.r[1] = w.x.load(acq); }}),
       kAll2},
      {"store buffering, seq_cst",
       test(2, {[](W w) { w.x.store(1, sc), w.r[0] = w.y.load(sc); },
                [](W w) { w.y.store(1, sc), w.r[1] = w.x.load(sc); }}),
       {"01", "10", "11"}},
      {"store buffering, one side seq_cst",
       test(2, {[](W w) { w.x.store(1, sc), w.r[0] = w.y.load(sc); },
                [](W w) { w.y.store(1, rel), w.r[1] = w.x.load(acq); }}),
       kAll2},
      {"store buffering, seq_cst fences",
       test(2, {[](W w) { w.x.store(1, rlx), std::atomic_thread_fence(sc), w.r[0] = w.y.load(rlx); },
                [](W w) { w.y.store(1, rlx), std::atomic_thread_fence(sc), w.r[1] = w.x.load(rlx); }}),
       {"01", "10", "11"}},
      {"store buffering, one fence",
       test(2, {[](W w) { w.x.store(1, rlx), std::atomic_thread_fence(sc), w.r[0] = w.y.load(rlx); },
                [](W w) { w.y.store(1, rlx), w.r[1] = w.x.load(rlx); }}),
       kAll2},
      {"store buffering, a fence and seq_cst accesses",
       test(2, {[](W w) { w.x.store(1, rlx), std::atomic_thread_fence(sc), w.r[0] = w.y.load(rlx); },
                [](W w) { w.y.store(1, sc), w.r[1] = w.x.load(sc); }}),
       {"01", "10", "11"}},
      {"store buffering, acq_rel changes of one word between",
       test(2, {[](W w) { w.x.store(1, rlx), w.z.fetch_add(1, ar), w.r[0] = w.y.load(rlx); },
                [](W w) { w.y.store(1, rlx), w.z.fetch_add(1, ar), w.r[1] = w.x.load(rlx); }}),
       {"01", "10", "11"}},
      {"a seq_cst load before another's of the same word, or after it",
       test(3, {[](W w) { w.x.store(1, rlx), w.y.store(1, rlx); }, [](W w) { w.r[0] = w.x.load(sc); },
                [](W w) { w.r[1] = w.y.load(rlx), w.r[2] = w.x.load(sc); }}),
       {"000", "001", "010", "011", "100", "101", "110", "111"}},
      {"message passing, relaxed",
       test(2, {[](W w) { w.x.store(1, rlx), w.y.store(1, rlx); },
                [](W w) { w.r[0] = w.y.load(rlx), w.r[1] = w.x.load(rlx); }}),
       kAll2},
      {"message passing, release and acquire",
       test(2, {[](W w) { w.x.store(1, rlx), w.y.store(1, rel); },
                [](W w) { w.r[0] = w.y.load(acq), w.r[1] = w.x.load(rlx); }}),
       {"00", "01", "11"}},
      {"message passing, no acquire",
       test(2, {[](W w) { w.x.store(1, rlx), w.y.store(1, rel); },
                [](W w) { w.r[0] = w.y.load(rlx), w.r[1] = w.x.load(rlx); }}),
       kAll2},
      {"message passing, no release",
       test(2, {[](W w) { w.x.store(1, rlx), w.y.store(1, rlx); },
                [](W w) { w.r[0] = w.y.load(acq), w.r[1] = w.x.load(rlx); }}),
       kAll2},
      {"message passing, fences",
       test(2, {[](W w) { w.x.store(1, rlx), std::atomic_thread_fence(rel), w.y.store(1, rlx); },
                [](W w) { w.r[0] = w.y.load(rlx), std::atomic_thread_fence(acq), w.r[1] = w.x.load(rlx); }}),
       {"00", "01", "11"}},
      {"message passing, no acquire fence",
       test(2, {[](W w) { w.x.store(1, rlx), std::atomic_thread_fence(rel), w.y.store(1, rlx); },
                [](W w) { w.r[0] = w.y.load(rlx), w.r[1] = w.x.load(rlx); }}),
       kAll2},
      {"message passing, by a release sequence",
       test(2, {[](W w) { w.x.store(1, rlx), w.y.store(1, rel); }, [](W w) { w.y.fetch_add(1, rlx); },
                [](W w) { w.r[0] = w.y.load(acq), w.r[1] = w.x.load(rlx); }}),
       {"00", "01", "10", "11", "21"}},
      {"message passing, a plain store ends the release sequence (C++20)",
       test(2, {[](W w) { w.x.store(1, rlx), w.y.store(1, rel), w.y.store(2, rlx); },
                [](W w) { w.r[0] = w.y.load(acq), w.r[1] = w.x.load(rlx); }}),
       {"00", "01", "11", "20", "21"}},
      {"message passing through a third thread",
       test(3, {[](W w) { w.x.store(1, rlx), w.y.store(1, rel); },
                [](W w) { w.r[0] = w.y.load(acq), w.z.store(1, rel); },
                [](W w) { w.r[1] = w.z.load(acq), w.r[2] = w.x.load(rlx); }}),
       {"000", "001", "010", "011", "100", "101", "111"}},
      {"load buffering, relaxed (without cycles)",
       test(2, {[](W w) { w.r[0] = w.y.load(rlx), w.x.store(1, rlx); },
                [](W w) { w.r[1] = w.x.load(rlx), w.y.store(1, rlx); }}),
       {"00", "01", "10"}},
      {"load buffering, release and acquire",
       test(2, {[](W w) { w.r[0] = w.y.load(acq), w.x.store(1, rel); },
                [](W w) { w.r[1] = w.x.load(acq), w.y.store(1, rel); }}),
       {"00", "01", "10"}},
      {"independent reads of independent writes, acquire",
       test(4, {[](W w) { w.x.store(1, rel); }, [](W w) { w.y.store(1, rel); },
                [](W w) { w.r[0] = w.x.load(acq), w.r[1] = w.y.load(acq); },
                [](W w) { w.r[2] = w.y.load(acq), w.r[3] = w.x.load(acq); }}),
       {"0000", "0001", "0010", "0011", "0100", "0101", "0110", "0111", "1000", "1001", "1010", "1011",
        "1100", "1101", "1110", "1111"}},
      {"independent reads of independent writes, seq_cst",
       test(4, {[](W w) { w.x.store(1, sc); }, [](W w) { w.y.store(1, sc); },
                [](W w) { w.r[0] = w.x.load(sc), w.r[1] = w.y.load(sc); },
                [](W w) { w.r[2] = w.y.load(sc), w.r[3] = w.x.load(sc); }}),
       {"0000", "0001", "0010", "0011", "0100", "0101", "0110", "0111", "1000", "1001", "1011", "1100",
        "1101", "1110", "1111"}},
      {"coherence of reads",
       test(2, {[](W w) { w.x.store(1, rlx); }, [](W w) { w.r[0] = w.x.load(rlx), w.r[1] = w.x.load(rlx); }}),
       {"00", "01", "11"}},
      {"coherence of two stores and two readers",
       test(4, {[](W w) { w.x.store(1, rlx); }, [](W w) { w.x.store(2, rlx); },
                [](W w) { w.r[0] = w.x.load(rlx), w.r[1] = w.x.load(rlx); },
                [](W w) { w.r[2] = w.x.load(rlx), w.r[3] = w.x.load(rlx); }}),
       [] {
         std::set<std::string> s;  // all outcomes except those that would need 1 before 2 and 2 before 1
         const auto back = [](int a, int b) { return a != 0 && b == 0; };
         for (int i = 0; i < 81; ++i) {
           const int a = i / 27, b = i / 9 % 3, c = i / 3 % 3, d = i % 3;
           const bool one_two = (a == 1 && b == 2) || (c == 1 && d == 2),
                      two_one = (a == 2 && b == 1) || (c == 2 && d == 1);
           if (!back(a, b) && !back(c, d) && !(one_two && two_one))
             s.insert(std::to_string(a) + std::to_string(b) + std::to_string(c) + std::to_string(d));
         }
         return s;
       }()},
      {"two stores each, relaxed",
       test(2,
            {[](W w) { w.x.store(1, rlx), w.y.store(2, rlx); },
             [](W w) { w.y.store(1, rlx), w.x.store(2, rlx); }},
            last_values),
       {"11", "12", "21", "22"}},
      {"two stores each, release",
       test(2,
            {[](W w) { w.x.store(1, rel), w.y.store(2, rel); },
             [](W w) { w.y.store(1, rel), w.x.store(2, rel); }},
            last_values),
       {"11", "12", "21", "22"}},
      {"two stores each, seq_cst",
       test(
           2,
           {[](W w) { w.x.store(1, sc), w.y.store(2, sc); }, [](W w) { w.y.store(1, sc), w.x.store(2, sc); }},
           last_values),
       {"12", "21", "22"}},
      {"two stores each, seq_cst fences",
       test(2,
            {[](W w) { w.x.store(1, rlx), std::atomic_thread_fence(sc), w.y.store(2, rlx); },
             [](W w) { w.y.store(1, rlx), std::atomic_thread_fence(sc), w.x.store(2, rlx); }},
            last_values),
       {"12", "21", "22"}},
      {"additions are whole",
       test(3, {[](W w) { w.r[0] = w.x.fetch_add(1, rlx); }, [](W w) { w.r[1] = w.x.fetch_add(1, rlx); }},
            [](W w) { w.r[2] = w.x.load(rlx); }),
       {"012", "102"}},
      {"one exchange wins",
       test(2, {[](W w) {
                  int e = 0;
                  w.r[0] = w.x.compare_exchange_strong(e, 1, rlx);
                },
                [](W w) {
                  int e = 0;
                  w.r[1] = w.x.compare_exchange_strong(e, 2, rlx);
                }}),
       {"01", "10"}},
      {"a store between two others",
       test(2, {[](W w) { w.x.store(1, rlx), w.r[0] = w.x.load(rlx); },
                [](W w) { w.x.store(2, rlx), w.r[1] = w.x.load(rlx); }}),
       {"12", "11", "22"}},
      {"plain data, release and acquire",
       test(1, {[](W w) { w.data = 1, w.x.store(1, rel); },
                [](W w) {
                  if (w.x.load(acq) == 1) w.r[0] = w.data + 1;
                }}),
       {"0", "2"}},
      {"plain data, no acquire",
       test(1, {[](W w) { w.data = 1, w.x.store(1, rel); },
                [](W w) {
                  if (w.x.load(rlx) == 1) w.r[0] = w.data + 1;
                }}),
       {},
       "races"},
      {"plain data, no release",
       test(1, {[](W w) { w.data = 1, w.x.store(1, rlx); },
                [](W w) {
                  if (w.x.load(acq) == 1) w.r[0] = w.data + 1;
                }}),
       {},
       "races"},
      {"plain data, written again too early",
       test(1, {[](W w) { w.data = 1, w.x.store(1, rel), w.data = 2; },
                [](W w) {
                  if (w.x.load(acq) == 1) w.r[0] = w.data + 1;
                }}),
       {},
       "races"},
      {"plain data under a lock",
       test(2, {[](W w) {
                  const std::lock_guard lock(w.mutex);
                  w.r[0] = ++w.data;
                },
                [](W w) {
                  const std::lock_guard lock(w.mutex);
                  w.r[1] = ++w.data;
                }}),
       {"12", "21"}},
      {"a wait for what nobody brings, beside something that changes",
       test(0, {[](W w) { w.y.store(1, rlx); },
                [](W w) {
                  if (w.y.load(rlx) == 0)
                    while (w.x.load(acq) == 0) sched_yield();
                }}),
       {},
       "nobody can move"},
  };
}

}  // namespace explore
