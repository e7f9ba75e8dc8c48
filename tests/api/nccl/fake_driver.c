/* A libcuda.so.1 with two devices, with only the functions by which libnccl.so.2 checks for devices. Used by
 * environment_test.py. */
int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }

int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}
