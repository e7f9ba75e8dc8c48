// compare_ompi and compare_mpich: MPI, one source for both libraries. bfloat16 does not exist there.
// Started by mpirun, which bench/compare starts.
#include <mpi.h>

#include <climits>
#include <cstdlib>

#include "bench/comparison/harness.h"
#include "bench/comparison/mpi_library.h"

namespace ouro::compare {
namespace {

class MpiPeer : public Peer {
 public:
  std::string library() const override { return mpi_library(); }

  Error start(const Launch& launch) override {
    if (MPI_Init(nullptr, nullptr) != MPI_SUCCESS) return "MPI_Init failed";
    int rank = -1, ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank != launch.rank || ranks != launch.ranks) return "MPI and its launcher disagree about ranks";
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return {};
  }

  void* allocate(Buffer kind, std::size_t bytes) override {
    return kind == Buffer::private_memory ? private_memory(bytes) : nullptr;
  }

  Error prepare(const Call& c, bool& supported) override {
    supported = c.element == Element::float32 && c.block <= INT_MAX && c.algorithm.empty();
    return {};
  }

  bool run(const Call& c) override {
    const int block = static_cast<int>(c.block);
    const void* in = c.in == c.out ? MPI_IN_PLACE : c.in;
    switch (c.collective) {
      case Collective::all_reduce:
        code_ = MPI_Allreduce(in, c.out, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
      case Collective::broadcast:
        code_ = MPI_Bcast(c.out, block, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
      case Collective::all_gather:
        code_ = MPI_Allgather(in, block, MPI_FLOAT, c.out, block, MPI_FLOAT, MPI_COMM_WORLD);
        break;
      case Collective::reduce_scatter:
        code_ = MPI_Reduce_scatter_block(in, c.out, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
      case Collective::all_to_all:
        code_ = MPI_Alltoall(in, block, MPI_FLOAT, c.out, block, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    }
    return code_ == MPI_SUCCESS;
  }

  Error error() const override {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code_, text, &length);
    return {text, static_cast<std::size_t>(length)};
  }

  void stop() override { MPI_Finalize(); }

 private:
  int code_ = MPI_SUCCESS;
};

}  // namespace
}  // namespace ouro::compare

int main(int argc, char** argv) {
  ouro::compare::MpiPeer peer;
  return ouro::compare::run_harness(argc, argv, peer);
}
