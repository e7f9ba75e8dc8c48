// Which MPI this is, for the tables of bench/compare. Used by compare_ompi, compare_mpich and
// compare_pair_ompi.
#pragma once
#include <string>

namespace ouro::compare {

/// "Open MPI v4.1.4", "MPICH Version: 4.0.2". May be called before MPI_Init.
std::string mpi_library();

}  // namespace ouro::compare
