/* A program that is linked with libnccl.so.2 and runs until its input ends. Used by who_test.py. */
#include <stdio.h>

#include "nccl.h"

int main(void) {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return 1;
  printf("%d\n", version);
  fflush(stdout);
  return getchar() == EOF ? 0 : 2;
}
