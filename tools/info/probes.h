// Can this process do what ouro needs? Found out by doing it. Used by ouro-info.
#pragma once
#include <string>
#include <vector>

namespace ouro::info {

/// Something that was really tried.
struct Probe {
  std::string name;
  bool works = false;
  std::string detail;  ///< what failed and the system's words for it; "" if it works
};

Probe probe_memfd();        ///< anonymous shared memory: created, reserved, mapped, written
Probe probe_seals();        ///< sealed against resizing, and the seal holds
Probe probe_pidfd();        ///< a descriptor of this process that can be polled
Probe probe_descriptors();  ///< a descriptor passed over a Unix-domain socket

/// The CUDA driver, opened at run time.
struct CudaDriver {
  bool found = false;
  std::string why;                   ///< why there is no usable device; "" if there is one
  int version = 0;                   ///< 12040 is 12.4
  std::vector<std::string> devices;  ///< names
};
CudaDriver probe_cuda();

}  // namespace ouro::info
