/* A program for CUDA and NCCL, as their users write them: device memory, streams, events, collectives and
 * messages in groups, without any reference to ouro. Usage: cuda_client threads|processes RANKS DEVICES, or,
 * for one rank, cuda_client rank RANKS DEVICES RANK ID|FILE; rank 0 writes the id to the file, which must not
 * exist. For the tests of libnccl. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nccl.h"

enum { kCount = 100003, kRounds = 5 };
static int ranks, devices;
static ncclUniqueId id;

#define CUDA(call)                                                                   \
  do {                                                                               \
    cudaError_t e_ = (call);                                                         \
    if (e_ != cudaSuccess) {                                                         \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, cudaGetErrorString(e_)); \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)
#define NCCL(call)                                                                      \
  do {                                                                                  \
    ncclResult_t e_ = (call);                                                           \
    if (e_ != ncclSuccess) {                                                            \
      fprintf(stderr, "line %d: %s: %s: %s\n", __LINE__, #call, ncclGetErrorString(e_), \
              ncclGetLastError(NULL));                                                  \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

/* The state of one rank. */
struct Rank {
  int rank, device;
  ncclComm_t comm;
  cudaStream_t stream, other;
  float *in, *out, *host; /* room for a block of each rank */
};

static void fill(struct Rank* r, float* to, float value, cudaStream_t on) {
  for (int i = 0; i < kCount; ++i) r->host[i] = value + (float)(i % 7);
  CUDA(cudaMemcpyAsync(to, r->host, kCount * sizeof(float), cudaMemcpyHostToDevice, on));
}

/* value + factor * (i % 7) in element i. */
static void expect(struct Rank* r, const float* from, float value, float factor, cudaStream_t on,
                   const char* what) {
  CUDA(cudaMemcpyAsync(r->host, from, kCount * sizeof(float), cudaMemcpyDeviceToHost, on));
  CUDA(cudaStreamSynchronize(on));
  for (int i = 0; i < kCount; ++i)
    if (r->host[i] != value + factor * (float)(i % 7)) {
      fprintf(stderr, "%s: rank %d, element %d is %g; expected %g\n", what, r->rank, i, r->host[i],
              value + factor * (float)(i % 7));
      exit(1);
    }
}

static void collectives(struct Rank* r) {
  const float n = (float)ranks, all = n * (n - 1) / 2;
  for (int round = 0; round < kRounds; ++round) { /* no waits between the copies and the calls */
    fill(r, r->in, (float)(r->rank + round), r->stream);
    NCCL(ncclAllReduce(r->in, r->out, kCount, ncclFloat, ncclSum, r->comm, r->stream));
    NCCL(ncclAllReduce(r->out, r->out, kCount, ncclFloat, ncclMax, r->comm, r->stream));
    expect(r, r->out, all + n * (float)round, n, r->stream, "all_reduce");
  }
  fill(r, r->in, (float)r->rank, r->stream);
  NCCL(ncclAllGather(r->in, r->out, kCount, ncclFloat, r->comm, r->stream));
  for (int k = 0; k < ranks; ++k)
    expect(r, r->out + (size_t)k * kCount, (float)k, 1, r->stream, "all_gather");
  NCCL(ncclReduceScatter(r->out, r->in, kCount, ncclFloat, ncclSum, r->comm, r->stream));
  expect(r, r->in, n * (float)r->rank, n, r->stream, "reduce_scatter");
  NCCL(ncclAlltoAll(r->out, r->out + (size_t)ranks * kCount, kCount, ncclFloat, r->comm, r->stream));
  for (int k = 0; k < ranks; ++k)
    expect(r, r->out + (size_t)(ranks + k) * kCount, (float)r->rank, 1, r->stream, "alltoall");
  fill(r, r->in, (float)r->rank, r->stream);
  NCCL(ncclBroadcast(r->in, r->out, kCount, ncclFloat, ranks - 1, r->comm, r->stream));
  expect(r, r->out, n - 1, 1, r->stream, "broadcast");
}

/* Sends to the next rank, receives from the previous one, and sends to itself, all in one group. */
static void messages(struct Rank* r) {
  const int next = (r->rank + 1) % ranks, before = (r->rank + ranks - 1) % ranks;
  fill(r, r->in, (float)r->rank, r->stream);
  NCCL(ncclGroupStart());
  NCCL(ncclSend(r->in, kCount, ncclFloat, next, r->comm, r->stream));
  NCCL(ncclRecv(r->out, kCount, ncclFloat, before, r->comm, r->stream));
  NCCL(ncclSend(r->in, kCount, ncclFloat, r->rank, r->comm, r->stream));
  NCCL(ncclRecv(r->out + kCount, kCount, ncclFloat, r->rank, r->comm, r->stream));
  NCCL(ncclGroupEnd());
  expect(r, r->out, (float)before, 1, r->stream, "recv");
  expect(r, r->out + kCount, (float)r->rank, 1, r->stream, "recv from itself");
}

/* One communicator on two streams keeps the order of its calls; in a group, both streams wait for the result.
 */
static void streams(struct Rank* r) {
  const float n = (float)ranks, all = n * (n - 1) / 2;
  for (int round = 0; round < kRounds; ++round) {
    fill(r, r->in, (float)r->rank, r->other);
    NCCL(ncclAllReduce(r->in, r->out, kCount, ncclFloat, ncclSum, r->comm, r->other));
    NCCL(ncclAllReduce(r->out, r->in, kCount, ncclFloat, ncclMax, r->comm, r->stream));
    expect(r, r->in, all, n, r->stream, "two streams");
  }
  fill(r, r->in, (float)r->rank, r->other);
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(r->in, r->out, kCount, ncclFloat, ncclSum, r->comm, r->stream));
  NCCL(ncclBroadcast(r->in, r->out + kCount, kCount, ncclFloat, 0, r->comm, r->other));
  NCCL(ncclGroupEnd());
  expect(r, r->out, all, n, r->other, "a group on two streams, the other");
  expect(r, r->out + kCount, 0, 1, r->stream, "a group on two streams, the first");
}

static void events(struct Rank* r) {
  cudaEvent_t begin, end;
  float ms = -1;
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  CUDA(cudaEventRecord(begin, r->stream));
  NCCL(ncclAllReduce(r->in, r->out, kCount, ncclFloat, ncclSum, r->comm, r->stream));
  CUDA(cudaEventRecord(end, r->stream));
  CUDA(cudaStreamWaitEvent(r->other, end, 0));
  CUDA(cudaEventSynchronize(end));
  CUDA(cudaEventElapsedTime(&ms, begin, end));
  if (ms < 0) exit(fprintf(stderr, "an event passed before the one before it\n"));
  CUDA(cudaEventDestroy(begin));
  CUDA(cudaEventDestroy(end));
}

static void* run(void* argument) {
  struct Rank r;
  memset(&r, 0, sizeof r);
  r.rank = (int)(size_t)argument, r.device = r.rank % devices;
  int device = -1;
  CUDA(cudaSetDevice(r.device));
  NCCL(ncclCommInitRank(&r.comm, ranks, id, r.rank));
  NCCL(ncclCommCuDevice(r.comm, &device));
  if (device != r.device) exit(fprintf(stderr, "ncclCommCuDevice says %d; expected %d\n", device, r.device));
  CUDA(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreate(&r.other));
  CUDA(cudaMalloc((void**)&r.in, kCount * sizeof(float)));
  NCCL(ncclMemAlloc((void**)&r.out, (size_t)(2 * ranks + 2) * kCount * sizeof(float)));
  CUDA(cudaMallocHost((void**)&r.host, kCount * sizeof(float)));
  collectives(&r);
  void *in = NULL, *out = NULL; /* as a program that registers its buffers, once it has used them */
  NCCL(ncclCommRegister(r.comm, r.in, kCount * sizeof(float), &in));
  NCCL(ncclCommRegister(r.comm, r.out, (size_t)(2 * ranks + 2) * kCount * sizeof(float), &out));
  if (!in || !out) exit(fprintf(stderr, "buffers of the device were not registered\n"));
  collectives(&r);
  messages(&r);
  streams(&r);
  events(&r);
  CUDA(cudaGetDevice(&device));
  if (device != r.device) exit(fprintf(stderr, "device %d is current; expected %d\n", device, r.device));
  CUDA(cudaStreamSynchronize(r.stream));
  NCCL(ncclCommDeregister(r.comm, in)); /* the other one ends with the communicator */
  CUDA(cudaStreamDestroy(r.other));     /* before the communicator that used it */
  NCCL(ncclCommDestroy(r.comm));
  CUDA(cudaStreamDestroy(r.stream));
  CUDA(cudaFree(r.in));
  NCCL(ncclMemFree(r.out));
  CUDA(cudaFreeHost(r.host));
  return NULL;
}

static void read_id(const char* text) {
  for (size_t i = 0; i < sizeof id.internal; ++i) {
    unsigned byte;
    sscanf(text + 2 * i, "%2x", &byte);
    id.internal[i] = (char)byte;
  }
}

static void share_id(const char* file, int write) {
  char fresh[4096];
  FILE* f = NULL;
  if (write) {
    NCCL(ncclGetUniqueId(&id));
    snprintf(fresh, sizeof fresh, "%s.new", file);
    f = fopen(fresh, "wb");
    if (!f || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f) || rename(fresh, file))
      exit(fprintf(stderr, "cannot write %s\n", file));
    return;
  }
  for (int i = 0; i < 6000 && !(f = fopen(file, "rb")); ++i) usleep(10000);
  if (!f || fread(&id, sizeof id, 1, f) != 1) exit(fprintf(stderr, "no id in %s after a minute\n", file));
  fclose(f);
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  ranks = atoi(argv[2]), devices = atoi(argv[3]);
  if (strcmp(argv[1], "rank") == 0) {
    if (argc < 6) return 2;
    if (argv[5][0] == '/')
      share_id(argv[5], atoi(argv[4]) == 0);
    else
      read_id(argv[5]);
    run((void*)(size_t)atoi(argv[4]));
    printf("rank %s: all results are right\n", argv[4]);
    return 0;
  }
  NCCL(ncclGetUniqueId(&id));
  if (strcmp(argv[1], "threads") == 0) {
    pthread_t threads[64];
    for (int k = 0; k < ranks; ++k) pthread_create(&threads[k], NULL, run, (void*)(size_t)k);
    for (int k = 0; k < ranks; ++k) pthread_join(threads[k], NULL);
  } else {
    char text[2 * sizeof id.internal + 1], number[16];
    int failed = 0;
    for (size_t i = 0; i < sizeof id.internal; ++i)
      sprintf(text + 2 * i, "%02x", (unsigned char)id.internal[i]);
    for (int k = 0; k < ranks; ++k) {
      sprintf(number, "%d", k);
      if (fork() == 0) {
        execl("/proc/self/exe", argv[0], "rank", argv[2], argv[3], number, text, (char*)NULL);
        _exit(127);
      }
    }
    for (int k = 0, status; k < ranks; ++k) failed |= wait(&status) < 0 || status != 0;
    if (failed) return 1;
  }
  printf("%d ranks as %s on %d devices: all results are right\n", ranks, argv[1], devices);
  return 0;
}
