// compare_pair_ompi: Open MPI between two ranks, over the transport that its command line names.
// Started by mpirun, which bench/compare --transport starts.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "bench/comparison/mpi_library.h"
#include "bench/comparison/pair.h"

namespace ouro::compare {
namespace {

class MpiPair : public Pair {
 public:
  std::string library() const override { return mpi_library(); }
  std::string start(int* rank) override {
    if (MPI_Init(nullptr, nullptr) != MPI_SUCCESS) return "MPI_Init failed";  // later errors end the job
    int ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    peer_ = 1 - *rank;
    return ranks == 2 ? "" : "wants two ranks";
  }
  void send(const void* data, std::size_t bytes) override {
    MPI_Send(data, static_cast<int>(bytes), MPI_BYTE, peer_, 0, MPI_COMM_WORLD);
  }
  void recv(void* data, std::size_t bytes) override {
    MPI_Recv(data, static_cast<int>(bytes), MPI_BYTE, peer_, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  void send_many(const void* data, std::size_t bytes, int count) override {
    many(count, [&](MPI_Request* r) {
      MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer_, 0, MPI_COMM_WORLD, r);
    });
  }
  void recv_many(void* data, std::size_t bytes, int count) override {
    // All go into one buffer, as in perf tests; its contents are checked after the last.
    many(count, [&](MPI_Request* r) {
      MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer_, 0, MPI_COMM_WORLD, r);
    });
  }
  void all_reduce(const float* in, float* out, std::size_t count) override {
    MPI_Allreduce(in, out, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void stop() override { MPI_Finalize(); }

 private:
  template <class Start>
  void many(int count, Start&& start) {
    std::array<MPI_Request, kWindow> all;
    for (int done = 0; done < count; done += kWindow) {
      const int n = std::min(kWindow, count - done);
      for (int i = 0; i < n; ++i) start(&all[static_cast<std::size_t>(i)]);
      MPI_Waitall(n, all.data(), MPI_STATUSES_IGNORE);
    }
  }
  int peer_ = -1;
};

}  // namespace
}  // namespace ouro::compare

int main(int argc, char** argv) {
  ouro::compare::MpiPair pair;
  return ouro::compare::run_pair(argc, argv, pair);
}
