// UCX as ranks started here would find it: which copy, which version, what it can carry and what is missing.
// Used by ouro-info.
#pragma once
#include <string>
#include <vector>

namespace ouro::info {

inline constexpr const char* kNoUcx = "not in this build (OURO_UCX=on adds it)";

struct Ucx {
  std::string why;         ///< why UCX is not available; "" if it is
  std::string version;     ///< of the loaded library, for example "1.13.1"
  std::string built_with;  ///< of the headers, for example "1.13"; "" in a build without UCX
  std::string path;        ///< of libucp
  /// Its components by UCX's own names: "self", "tcp", "ib", "cuda_cpy", ...
  std::vector<std::string> parts;
  /// Whether it takes memory of GPUs and by which components, as text: "yes, by cuda_cpy", "no: ...".
  std::string gpu_memory;
};

Ucx read_ucx();

/// The capabilities that a job may miss in it, as text for people: "CUDA (GPU memory goes through the host)".
std::vector<std::string> lacks(const Ucx&);

}  // namespace ouro::info
