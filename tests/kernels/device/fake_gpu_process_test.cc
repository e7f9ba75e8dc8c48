// The fake GPU in several processes: memory by descriptor and by IPC handle, waits for words of another
// process, forks, and the choice of GPU by environment.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "runtime/core/env.h"
#include "tests/kernels/device/fake_gpu_harness.h"

namespace ouro::gpu::test {
namespace {

/// A forked process that runs `body`, and a pipe to it. It fails if the body throws, returns an error text,
/// or takes longer than 20 s.
class Child {
 public:
  explicit Child(const std::function<std::string(int pipe)>& body) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[1]);
      alarm(20);
      std::string wrong;
      try {
        wrong = body(ends[0]);
      } catch (const std::exception& e) {
        wrong = e.what();
      }
      if (!wrong.empty()) std::fprintf(stderr, "child: %s\n", wrong.c_str());
      _exit(wrong.empty() ? 0 : 1);
    }
    close(ends[0]);
    to_ = Fd(ends[1]);
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  template <class T>
  void send(const T& t) {
    EXPECT_EQ(::write(to_.get(), &t, sizeof t), static_cast<ssize_t>(sizeof t));
  }
  int join() {
    int how = -1;
    waitpid(std::exchange(pid_, -1), &how, 0);
    return how;
  }

 private:
  pid_t pid_;
  Fd to_;
};

template <class T>
T receive(int pipe) {
  T t;
  if (read(pipe, &t, sizeof t) != static_cast<ssize_t>(sizeof t)) throw std::runtime_error("nothing came");
  return t;
}

/// Alternates with another process in counting words up, `first` beginning: this one writes `mine`.
void take_turns(Rig& rig, std::uint32_t* mine, std::uint32_t* theirs, bool first) {
  for (std::uint32_t i = 1; i <= 50; ++i) {
    if (first && !rig.enqueue(write(mine, i)).ok()) throw std::runtime_error("write");
    if (!rig.enqueue(at_least(theirs, i)).ok()) throw std::runtime_error("wait");
    if (!first && !rig.enqueue(write(mine, i)).ok()) throw std::runtime_error("write");
  }
  const Status s = rig.gpu.synchronize(rig.stream);
  if (!s.ok()) throw std::runtime_error(s.message());
}

TEST(FakeGpuProcesses, ShareMemoryByDescriptor) {
  OURO_NEEDS_PROCESSES();
  Rig rig;
  const Region r = value(rig.gpu.alloc_shareable(0, 4096));
  std::memset(r.data, 0, r.bytes);
  const Fd fd = value(rig.gpu.export_fd(r));
  Child child([&](int) -> std::string {
    Rig mine;
    const Region i = value(mine.gpu.import_fd(0, fd, r.bytes));
    auto* words = static_cast<std::uint32_t*>(i.data);
    take_turns(mine, words + 1, words, false);
    return mine.gpu.free_region(i).message() == Status().message() ? "" : "not released";
  });
  auto* words = static_cast<std::uint32_t*>(r.data);
  take_turns(rig, words, words + 1, true);
  EXPECT_EQ(child.join(), 0);
  OK(rig.gpu.free_region(r));
}

TEST(FakeGpuProcesses, ShareMemoryByIpcHandle) {
  OURO_NEEDS_PROCESSES();
  Child child([&](int pipe) -> std::string {
    Rig rig({.devices = 2});
    const auto handle = receive<IpcHandle>(pipe);
    auto* words = static_cast<std::uint32_t*>(value(rig.gpu.ipc_open(0, handle)));
    if (value(rig.gpu.ipc_open(0, handle)) != words) return "opened twice, it has two addresses";
    if (value(rig.gpu.ipc_open(1, handle)) == words) return "two devices share a mapping";
    if (!rig.gpu.ipc_close(0, words).ok()) return "the second opening cannot be closed";
    if (rig.gpu.ipc_close(1, words).ok()) return "closed for a device that did not open it";
    if (rig.gpu.ipc_export(words).ok()) return "exported what it imported";
    take_turns(rig, words + 1, words, false);
    receive<bool>(pipe);  // the exporter has freed it now
    if (words[0] != 50) return "an open mapping ended with the memory of the exporter";
    if (!rig.gpu.ipc_close(0, words).ok()) return "cannot be closed";
    if (rig.gpu.ipc_close(0, words).ok()) return "closed once too often";
    const auto gone = rig.gpu.ipc_open(0, handle);
    return gone.status().reason() == Reason::invalid ? "" : "opened what was freed";
  });
  Rig rig;
  OK(rig.gpu.free(rig.words));
  auto* words = static_cast<std::uint32_t*>(value(rig.gpu.alloc(0, 4096)));
  std::memset(words, 0, 4096);
  child.send(value(rig.gpu.ipc_export(words)));
  take_turns(rig, words, words + 1, true);
  OK(rig.gpu.free(words));
  child.send(true);
  EXPECT_EQ(child.join(), 0);
}

TEST(FakeGpuProcesses, ForkedChildStartsWithoutTheParentsResources) {
  OURO_NEEDS_PROCESSES();
  Rig rig;
  const Event e = rig.event();
  OK(rig.gpu.record(e, rig.stream));
  OK(rig.gpu.synchronize(rig.stream));
  rig.gpu.fail_next(FakeOp::set, Reason::unsupported);
  Child child([&](int) -> std::string {
    if (rig.gpu.live() != FakeLive()) return "it begins with something";
    if (rig.gpu.synchronize(rig.stream).reason() != Reason::forked) return "the parent's stream can be used";
    if (rig.gpu.query(e).status().reason() != Reason::forked) return "the parent's event can be used";
    if (rig.gpu.free(rig.words).ok()) return "the parent's memory can be freed";
    const Stream s = value(rig.gpu.create_stream(0, 0));
    void* p = value(rig.gpu.alloc(0, 8));
    if (rig.gpu.set(p, 7, 8, s).reason() != Reason::unsupported) return "an injection got lost";
    if (!rig.gpu.set(p, 7, 8, s).ok() || !rig.gpu.synchronize(s).ok()) return "nothing works";
    return *static_cast<char*>(p) == 7 ? "" : "nothing happened";
  });
  EXPECT_EQ(child.join(), 0);
  EXPECT_THAT(rig.gpu.set(rig.words, 0, 4, rig.stream), Fails(Reason::unsupported, "injected"));
  OK(rig.gpu.synchronize(rig.stream));
}

TEST(FakeGpuProcesses, TheEnvironmentChoosesFakes) {
  OURO_NEEDS_PROCESSES();
  const auto chosen = [](const char* fakes) {
    return [fakes](int) -> std::string {
      FakeGpu other;
      install(&other);
      setenv("OURO_FAKE_GPUS", fakes, 1);
      env::reload();
      if (&gpu() != &other) return "what is installed does not come first";
      install(nullptr);
      const std::string got = std::string(gpu().name()) + " " + std::to_string(gpu().devices()),
                        want = fakes[0] == '3' ? "fake 3" : "none 0";
      if (got != want) return got + " instead of " + want;
      if (fakes[0] == '9')
        return gpu().version().find("OURO_FAKE_GPUS=99") != std::string::npos ? "" : gpu().version();
      return "";
    };
  };
  EXPECT_EQ(Child(chosen("3")).join(), 0);
  EXPECT_EQ(Child(chosen("99")).join(), 0) << "which is not accepted, and says so";
}

}  // namespace
}  // namespace ouro::gpu::test
