// A management library with four GPUs and one that cannot be queried: 0 reaches 1 and 2, 2 for reading only,
// and 3 is a part of a GPU. Opened by nvml_test.cc.
#include <cstdio>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
int g_open = 0;
}

EXPORT int nvmlInit_v2() {
  ++g_open;
  return 0;
}
EXPORT int nvmlShutdown() {
  --g_open;
  return 0;
}
EXPORT int nvmlDeviceGetCount_v2(unsigned* many) {
  *many = 5;
  return g_open == 1 ? 0 : 1;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** device) {
  *device = reinterpret_cast<void*>(static_cast<unsigned long>(i + 1));
  return i == 4 ? 15 : 0;
}
EXPORT int nvmlDeviceGetUUID(void* device, char* text, unsigned bytes) {
  const auto i = reinterpret_cast<unsigned long>(device) - 1;
  std::snprintf(text, bytes, "%s-8f6a1b2c-0d1e-2f30-4152-63748596070%lu", i == 3 ? "MIG" : "GPU", i);
  return 0;
}
EXPORT int nvmlDeviceGetP2PStatus(void* from, void* to, int what, int* status) {
  const auto a = reinterpret_cast<unsigned long>(from) - 1, b = reinterpret_cast<unsigned long>(to) - 1;
  *status = a == 0 && (b == 1 || (b == 2 && what == 0)) ? 0 : 4;
  return 0;
}
