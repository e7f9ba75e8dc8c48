/* Memory and streams of GPUs through ouro.h, from C99, with two ranks that are threads. Each rank fills and
 * reads its device memory by messages to itself. Exits with 0 if all checks hold, 77 without a GPU. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "ouro/ouro.h"

enum { N = 2, COUNT = 3000, SKIPPED = 77 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int failures = 0;

static void fail(int line, const char* what) {
  pthread_mutex_lock(&lock);
  ++failures;
  pthread_mutex_unlock(&lock);
  fprintf(stderr, "line %d: %s (last error: %s)\n", line, what, ouro_last_error());
}
#define CHECK(condition)                          \
  do {                                            \
    if (!(condition)) fail(__LINE__, #condition); \
  } while (0)
#define OK(call) CHECK((call) == OURO_CODE_OK)
#define REFUSED(call, word)                         \
  do {                                              \
    CHECK((call) == OURO_CODE_INVALID);             \
    CHECK(strstr(ouro_last_error(), word) != NULL); \
  } while (0)

static ouro_op_t sum(void) { return ouro_op(OURO_OP_SUM); }

/* Copies between host and device memory, in either direction. Call it on all ranks at the same time: a
 * message releases its pinned memory, which waits for all work on the device, and that work must not wait for
 * a rank that is in this function. */
static void copy(ouro_group_t g, void* to, const void* from, size_t count) {
  OK(ouro_group_start());
  OK(ouro_recv(g, to, count, OURO_DTYPE_F32, ouro_group_rank(g), 1, 0, NULL, NULL, NULL));
  OK(ouro_send(g, from, count, OURO_DTYPE_F32, ouro_group_rank(g), 1, NULL, NULL));
  OK(ouro_group_end());
  OK(ouro_barrier(g, NULL, NULL));
}

/* Whether all COUNT elements in device memory are `value`. */
static int all_are(ouro_group_t g, const void* device, float value) {
  static float host[N][COUNT]; /* one row for each rank */
  float* mine = host[ouro_group_rank(g)];
  int i;
  copy(g, mine, device, COUNT);
  for (i = 0; i < COUNT; ++i)
    if (mine[i] != value) return 0;
  return 1;
}

static void operations(ouro_group_t g, int r, int device, void* in, void* out) {
  ouro_call_options_t options = OURO_CALL_OPTIONS;
  ouro_stream_t own = NULL, same = NULL;
  ouro_work_t work = NULL;
  float ones[COUNT], host = (float)r, both = 0;
  int i;
  for (i = 0; i < COUNT; ++i) ones[i] = 1;
  copy(g, in, ones, COUNT);
  /* Without a stream. */
  OK(ouro_all_reduce(g, in, out, COUNT, OURO_DTYPE_F32, sum(), NULL, NULL, NULL));
  CHECK(all_are(g, out, N));
  /* In a stream of the GPU, and in another handle of the same one: the order is kept. */
  OK(ouro_stream_create_device(device, OURO_PRIORITY_HIGH, &own));
  CHECK(ouro_stream_device(own) == device && ouro_stream_handle(own) != NULL);
  OK(ouro_stream_cuda(ouro_stream_handle(own), device, &same));
  CHECK(ouro_stream_handle(same) == ouro_stream_handle(own));
  options.memory = OURO_MEMORY_DEVICE;
  options.numerics = OURO_NUMERICS_CANONICAL;
  OK(ouro_all_reduce(g, out, in, COUNT, OURO_DTYPE_F32, sum(), &options, own, NULL));
  OK(ouro_broadcast(g, r == 1 ? in : NULL, out, COUNT, OURO_DTYPE_F32, 1, &options, same, NULL));
  OK(ouro_reduce_scatter(g, out, in, COUNT / N, OURO_DTYPE_F32, sum(), &options, own, NULL));
  OK(ouro_all_gather(g, in, out, COUNT / N, OURO_DTYPE_F32, NULL, own, &work));
  OK(ouro_work_wait(work, -1));
  ouro_work_destroy(work);
  CHECK(all_are(g, out, 2 * N * N));
  /* Ignored buffers may be null, or on the host. */
  OK(ouro_broadcast(g, r == 0 ? out : NULL, in, COUNT, OURO_DTYPE_F32, 0, NULL, NULL, NULL));
  OK(ouro_reduce(g, in, r == 0 ? out : NULL, COUNT, OURO_DTYPE_F32, sum(), 0, NULL, NULL, NULL));
  CHECK(all_are(g, out, r == 0 ? 2 * N * N * N : 2 * N * N));
  /* Memory of the host is recognised as such, also in the same stream. */
  OK(ouro_all_reduce(g, &host, &both, 1, OURO_DTYPE_F32, sum(), NULL, own, NULL));
  OK(ouro_stream_synchronize(own, -1));
  CHECK(both == 1);
  OK(ouro_barrier(g, own, NULL));
  OK(ouro_stream_synchronize(own, -1));

  REFUSED(ouro_all_reduce(g, in, &both, 1, OURO_DTYPE_F32, sum(), NULL, NULL, NULL), "on the host");
  options.memory = 7;
  REFUSED(ouro_all_reduce(g, in, out, 1, OURO_DTYPE_F32, sum(), &options, NULL, NULL), "memory 7");
  ouro_stream_destroy(same);
  ouro_stream_destroy(own);
  OK(ouro_group_status(g));
}

/* Memory that is registered, twice, as a whole and in part. */
static void registrations(ouro_context_t c, ouro_group_t g, void* memory) {
  ouro_registration_t all = NULL, part = NULL;
  float here[COUNT];
  int i;
  OK(ouro_register(c, memory, COUNT * sizeof(float), &all));
  OK(ouro_register(c, (char*)memory + 12, 100, &part));
  CHECK(all != NULL && part != NULL && all != part);
  for (i = 0; i < COUNT; ++i) here[i] = 1;
  copy(g, memory, here, COUNT);
  OK(ouro_all_reduce(g, memory, memory, COUNT, OURO_DTYPE_F32, sum(), NULL, NULL, NULL));
  CHECK(all_are(g, memory, N));
  OK(ouro_deregister(all, -1));
  OK(ouro_deregister(part, 0));
  OK(ouro_deregister(NULL, -1));
  REFUSED(ouro_register(c, memory, 0, &all), "0 bytes");
  REFUSED(ouro_register(c, here, sizeof here, &all), "not memory of a GPU");
  REFUSED(ouro_register(c, memory, 4, NULL), "registration is null");
  REFUSED(ouro_register(NULL, memory, 4, &all), "context is null");
}

static void* rank(void* argument) {
  ouro_context_t c = (ouro_context_t)argument;
  ouro_group_t g = NULL;
  ouro_stream_t s = NULL;
  void *in = NULL, *out = NULL;
  const int device = ouro_context_device(c), r = ouro_context_rank(c);
  CHECK(device == r % ouro_device_count());
  OK(ouro_context_world(c, &g));
  OK(ouro_alloc_device(c, COUNT * sizeof(float), &in));
  OK(ouro_alloc_device(c, COUNT * sizeof(float), &out));
  if (in && out) {
    CHECK(all_are(g, in, 0));
    operations(g, r, device, in, out);
    registrations(c, g, out);
  }
  OK(ouro_stream_create(OURO_PRIORITY_NORMAL, NULL, &s));
  CHECK(ouro_stream_device(s) == -1 && ouro_stream_handle(s) == NULL);
  ouro_stream_destroy(s);
  REFUSED(ouro_stream_create_device(99, OURO_PRIORITY_NORMAL, &s), "99");
  REFUSED(ouro_stream_cuda(NULL, 99, &s), "99");
  REFUSED(ouro_stream_create_device(device, 5, &s), "ouro_priority_t");
  CHECK(ouro_stream_device(NULL) == -1 && ouro_stream_handle(NULL) == NULL);
  REFUSED(ouro_alloc_device(c, 1, NULL), "data is null");
  OK(ouro_barrier(g, NULL, NULL));
  OK(ouro_free(c, in));
  REFUSED(ouro_free(c, in), "not allocated");
  OK(ouro_free(c, out));
  OK(ouro_context_close(c));
  return NULL;
}

/* A rank without a GPU works on the host only, and its errors say so. */
static void without(void) {
  ouro_init_options_t options = OURO_INIT_OPTIONS;
  ouro_call_options_t call = OURO_CALL_OPTIONS;
  ouro_context_t c = NULL;
  ouro_group_t g = NULL;
  ouro_registration_t registration = NULL;
  void* data = NULL;
  float x = 3, y = 0;
  options.device = -3;
  REFUSED(ouro_context_threads(1, &options, &c), "options->device is -3");
  options.device = OURO_DEVICE_NONE;
  OK(ouro_context_threads(1, &options, &c));
  CHECK(ouro_context_device(c) == -1);
  OK(ouro_context_world(c, &g));
  REFUSED(ouro_alloc_device(c, 64, &data), "no GPU");
  REFUSED(ouro_register(c, &x, sizeof x, &registration), "no GPU");
  call.memory = OURO_MEMORY_DEVICE;
  REFUSED(ouro_all_reduce(g, &x, &y, 1, OURO_DTYPE_F32, sum(), &call, NULL, NULL), "has none");
  call.memory = OURO_MEMORY_HOST;
  OK(ouro_all_reduce(g, &x, &y, 1, OURO_DTYPE_F32, sum(), &call, NULL, NULL));
  CHECK(y == 3);
  /* A structure of a version without the last members: these keep their defaults. */
  options.size = offsetof(ouro_init_options_t, device);
  ouro_context_destroy(c);
  OK(ouro_context_threads(1, &options, &c));
  CHECK(ouro_context_device(c) == 0);
  ouro_context_destroy(c);
}

int main(void) {
  ouro_context_t contexts[N] = {NULL, NULL};
  pthread_t threads[N];
  int i;
  if (ouro_device_count() == 0) {
    printf("SKIP: no CUDA device\n");
    return SKIPPED;
  }
  if (ouro_context_threads(N, NULL, contexts) != OURO_CODE_OK) {
    fail(__LINE__, "ouro_context_threads");
    return 1;
  }
  for (i = 0; i < N; ++i) pthread_create(&threads[i], NULL, rank, contexts[i]);
  for (i = 0; i < N; ++i) pthread_join(threads[i], NULL);
  for (i = 0; i < N; ++i) ouro_context_destroy(contexts[i]);
  without();
  if (failures == 0) printf("all checks of the C interface on devices hold\n");
  return failures == 0 ? 0 : 1;
}
