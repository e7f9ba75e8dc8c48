/* A libnccl.so.2 that is not ouro's, as far as who_test.py needs one. */
int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
