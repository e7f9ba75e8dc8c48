// nccl.h alone, as C++17: the same checks as in C.
#include "header_test.c"
