// The beginning of the library's version text. See mpi_library.h.
#include "bench/comparison/mpi_library.h"

#include <mpi.h>

namespace ouro::compare {

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

}  // namespace ouro::compare
