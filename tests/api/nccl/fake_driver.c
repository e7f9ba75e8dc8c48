/* A libcuda.so.1 with two devices, as far as libnccl.so.2 asks: whether there are any. For
 * environment_test.py. */
int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }

int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}
