/* A libnccl.so.2 that is not ouro's, with only what who_test.py needs. */
int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
