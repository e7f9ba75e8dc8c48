// Tests by trying whether this process can do everything that ouro needs. Used by ouro-info.
#pragma once
#include <string>
#include <vector>

namespace ouro::info {

/// The result of one attempt.
struct Probe {
  std::string name;
  bool works = false;
  std::string detail;  ///< what failed and the system's error text; "" if it works
  /// Whether ranks cannot run without it; ranks that lack one of the others can run.
  bool required() const { return name != "pidfd" && name != "memory of other processes"; }
};

Probe probe_memfd();        ///< anonymous shared memory: create, reserve, map, write
Probe probe_seals();        ///< seal against resizing, and check that the seal holds
Probe probe_pidfd();        ///< get a descriptor of this process that can be polled
Probe probe_descriptors();  ///< pass a descriptor over a Unix-domain socket
/// Read the memory of a process that is no descendant, as ranks read each other's (`pull`).
Probe probe_pull();

/// The CUDA driver, which is loaded at run time.
struct CudaDriver {
  bool found = false;
  std::string why;                   ///< why there is no usable device; "" if there is one
  int version = 0;                   ///< 12040 means 12.4
  std::vector<std::string> devices;  ///< names
};
CudaDriver probe_cuda();

}  // namespace ouro::info
