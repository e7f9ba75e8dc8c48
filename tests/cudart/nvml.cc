// The little of NVIDIA's management library that PyTorch asks for when it maps expandable segments: devices,
// and that none is part of a fabric. Put beside the CUDA runtime of the tests.
#define OURO_NVML extern "C" __attribute__((visibility("default"))) int

namespace {
int one_device;
constexpr int kSuccess = 0, kNotSupported = 3;
}  // namespace

OURO_NVML nvmlInit_v2() { return kSuccess; }
OURO_NVML nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = &one_device;
  return kSuccess;
}
// What the caller has put into its structure stays: not supported.
OURO_NVML nvmlDeviceGetGpuFabricInfoV(void*, void*) { return kNotSupported; }
// Looked up with the others, and not called for segments.
OURO_NVML nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return kNotSupported; }
OURO_NVML nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNotSupported; }
OURO_NVML nvmlDeviceGetComputeRunningProcesses(void*, unsigned*, void*) { return kNotSupported; }
OURO_NVML nvmlSystemGetCudaDriverVersion_v2(int*) { return kNotSupported; }
