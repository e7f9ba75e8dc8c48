// UCX as ranks started here would find it: which copy, which version, what it can carry and what it lacks.
// Used by ouro-info.
#pragma once
#include <string>
#include <vector>

namespace ouro::info {

inline constexpr const char* kNoUcx = "not in this build (OURO_UCX=on adds it)";

struct Ucx {
  std::string why;                 ///< why there is none; "" if there is one
  std::string version;             ///< "1.13.1": of the library that is loaded
  std::string built_with;          ///< "1.13": of the headers; "" in a build without UCX
  std::string path;                ///< of libucp
  std::vector<std::string> parts;  ///< UCX's own names of what it has: "self", "tcp", "ib", "cuda_cpy", ...
};

Ucx read_ucx();

/// What a job may miss in it, for people: "CUDA (GPU memory goes through the host)".
std::vector<std::string> lacks(const Ucx&);

}  // namespace ouro::info
