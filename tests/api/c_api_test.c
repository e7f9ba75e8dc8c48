/* Calls every function of ouro.h from C99, with three ranks that are threads. Exits with 0 if all checks
 * hold. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "ouro/ouro.h"

enum { N = 3 };

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
/* The call must be refused, and the error must name what is wrong. */
#define REFUSED(call, word)                         \
  do {                                              \
    CHECK((call) == OURO_CODE_INVALID);             \
    CHECK(strstr(ouro_last_error(), word) != NULL); \
  } while (0)

static ouro_op_t sum(void) { return ouro_op(OURO_OP_SUM); }

static void reductions(ouro_group_t g, int r) {
  float x[2] = {0, 10}, y[2] = {0, 0};
  int64_t i = r, top = -1;
  double block[N] = {1, 2, 3}, mine = 0, uneven[6] = {1, 2, 3, 4, 5, 6}, part[3] = {0, 0, 0};
  const size_t counts[N] = {1, 2, 3};
  ouro_call_options_t options = OURO_CALL_OPTIONS;
  x[0] = (float)r;
  OK(ouro_all_reduce(g, x, y, 2, OURO_DTYPE_F32, sum(), NULL, NULL, NULL));
  CHECK(y[0] == 3 && y[1] == 30);
  options.numerics = OURO_NUMERICS_CANONICAL;
  OK(ouro_all_reduce(g, x, x, 2, OURO_DTYPE_F32, ouro_op(OURO_OP_AVG), &options, NULL, NULL));
  CHECK(x[0] == 1 && x[1] == 10);
  OK(ouro_all_reduce(g, &i, &top, 1, OURO_DTYPE_I64, ouro_op(OURO_OP_MAX), NULL, NULL, NULL));
  CHECK(top == N - 1);
  OK(ouro_all_reduce(g, &i, &top, 1, OURO_DTYPE_I64, ouro_op_premul_integer(2), NULL, NULL, NULL));
  CHECK(top == 6);
  CHECK(ouro_all_reduce(g, &i, &top, 1, OURO_DTYPE_I64, ouro_op_premul(0.5), NULL, NULL, NULL) ==
        OURO_CODE_INVALID);
  CHECK(ouro_op_premul(-2.0).integer == -2 && ouro_op_premul(1e19).integer == (int64_t)10000000000000000000u);
  OK(ouro_all_reduce(g, y, y, 1, OURO_DTYPE_F32, ouro_op_premul(0.5), NULL, NULL, NULL));
  CHECK(y[0] == 4.5f);
  OK(ouro_reduce(g, &i, r == 1 ? &top : NULL, 1, OURO_DTYPE_I64, sum(), 1, NULL, NULL, NULL));
  CHECK(r != 1 || top == 3);
  OK(ouro_reduce_scatter(g, block, &mine, 1, OURO_DTYPE_F64, sum(), NULL, NULL, NULL));
  CHECK(mine == N * (r + 1));
  OK(ouro_reduce_scatter_v(g, uneven, part, counts, OURO_DTYPE_F64, sum(), NULL, NULL, NULL));
  CHECK(part[0] == N * uneven[r * (r + 1) / 2] && (r == 0 || part[r] == N * uneven[r * (r + 1) / 2 + r]));
  OK(ouro_all_reduce(g, NULL, NULL, 0, OURO_DTYPE_F32, sum(), NULL, NULL, NULL));
}

static void movement(ouro_group_t g, int r) {
  int32_t one = r, all[N] = {-1, -1, -1}, out[N] = {-1, -1, -1}, send[N], many[6], got[6];
  const size_t counts[N] = {1, 2, 3}, to_next[N] = {1, 1, 1};
  int k;
  OK(ouro_all_gather(g, &one, all, 1, OURO_DTYPE_I32, NULL, NULL, NULL));
  for (k = 0; k < N; ++k) CHECK(all[k] == k);
  for (k = 0; k < N; ++k) out[k] = 10 * r + k;
  OK(ouro_all_gather_v(g, out, many, counts, OURO_DTYPE_I32, NULL, NULL, NULL));
  CHECK(many[0] == 0 && many[1] == 10 && many[2] == 11 && many[3] == 20 && many[5] == 22);
  OK(ouro_broadcast(g, r == 2 ? &one : NULL, out, 1, OURO_DTYPE_I32, 2, NULL, NULL, NULL));
  CHECK(out[0] == 2);
  memset(all, 0xff, sizeof(all));
  OK(ouro_gather(g, &one, r == 0 ? all : NULL, 1, OURO_DTYPE_I32, 0, NULL, NULL, NULL));
  CHECK(r != 0 || (all[0] == 0 && all[1] == 1 && all[2] == 2));
  for (k = 0; k < N; ++k) all[k] = 7 * k;
  OK(ouro_scatter(g, r == 0 ? all : NULL, out, 1, OURO_DTYPE_I32, 0, NULL, NULL, NULL));
  CHECK(out[0] == 7 * r);
  for (k = 0; k < N; ++k) send[k] = 10 * r + k;
  OK(ouro_all_to_all(g, send, out, 1, OURO_DTYPE_I32, NULL, NULL, NULL));
  for (k = 0; k < N; ++k) CHECK(out[k] == 10 * k + r);
  OK(ouro_all_to_all_v(g, send, got, to_next, to_next, OURO_DTYPE_I32, NULL, NULL, NULL));
  for (k = 0; k < N; ++k) CHECK(got[k] == 10 * k + r);
  OK(ouro_barrier(g, NULL, NULL));
}

static void note(int code, const char* message, void* argument) {
  (void)message;
  *(int*)argument = code;
}

static void streams(ouro_group_t g, int r) {
  ouro_stream_t s = NULL;
  ouro_work_t work = NULL, second = NULL, immediate = NULL;
  float x = (float)r, y = 0, z = 0;
  int noted = -1;
  OK(ouro_stream_create(OURO_PRIORITY_NORMAL, "test", &s));
  OK(ouro_all_reduce(g, &x, &y, 1, OURO_DTYPE_F32, sum(), NULL, s, &work));
  OK(ouro_all_reduce(g, &y, &z, 1, OURO_DTYPE_F32, sum(), NULL, s, &second));
  OK(ouro_work_wait(second, -1));
  OK(ouro_work_wait(second, 1000));
  CHECK(ouro_work_test(work) == 1);
  OK(ouro_work_status(work));
  OK(ouro_work_then(work, note, &noted));
  CHECK(noted == OURO_CODE_OK);
  CHECK(y == 3 && z == 9);
  OK(ouro_barrier(g, s, NULL));
  OK(ouro_stream_synchronize(s, -1));
  OK(ouro_barrier(g, NULL, &immediate));
  CHECK(ouro_work_test(immediate) == 1);
  ouro_work_destroy(work);
  ouro_work_destroy(second);
  ouro_work_destroy(immediate);
  ouro_stream_destroy(s);
}

static void messages(ouro_group_t g, int r) {
  const int next = (r + 1) % N, prev = (r + N - 1) % N;
  int32_t mine = r, got[2] = {-1, -1};
  int found = -1;
  ouro_received_t info = {-1, -1, 0};
  ouro_work_t work = NULL;
  OK(ouro_send(g, &mine, 1, OURO_DTYPE_I32, next, 7, NULL, NULL));
  OK(ouro_recv(g, got, 2, OURO_DTYPE_I32, OURO_ANY_SOURCE, 7, 10000, &info, NULL, NULL));
  CHECK(got[0] == prev && got[1] == -1);
  CHECK(info.source == prev && info.tag == 7 && info.bytes == sizeof(mine));
  OK(ouro_probe(g, prev, 8, &found, &info));
  CHECK(found == 0);
  OK(ouro_barrier(g, NULL, NULL));
  OK(ouro_group_start());
  OK(ouro_recv(g, got, 1, OURO_DTYPE_I32, next, 9, 0, NULL, NULL, NULL));
  OK(ouro_send(g, &mine, 1, OURO_DTYPE_I32, prev, 9, NULL, NULL));
  OK(ouro_group_end());
  CHECK(got[0] == next);
  OK(ouro_barrier(g, NULL, NULL));
  OK(ouro_group_start());
  REFUSED(ouro_recv(g, got, 1, OURO_DTYPE_I32, next, 9, 0, &info, NULL, NULL),
          "received must be null between");
  REFUSED(ouro_recv(g, got, 1, OURO_DTYPE_I32, next, 9, 1, NULL, NULL, NULL),
          "deadline_ms must be 0 between");
  OK(ouro_recv(g, got, 1, OURO_DTYPE_I32, next, 9, 0, NULL, NULL, &work));
  CHECK(ouro_work_test(work) == 0);
  OK(ouro_send(g, &mine, 1, OURO_DTYPE_I32, prev, 9, NULL, NULL));
  OK(ouro_group_end());
  CHECK(ouro_work_test(work) == 1 && ouro_work_status(work) == OURO_CODE_OK && got[0] == next);
  ouro_work_destroy(work);
  REFUSED(ouro_send(g, &mine, 1, OURO_DTYPE_I32, N, 0, NULL, NULL), "");
  {
    ouro_transfer_t ring[2] = {{0, 0, NULL, 1, OURO_DTYPE_I32}, {0, 1, NULL, 1, OURO_DTYPE_I32}};
    ring[0].peer = prev, ring[0].data = got;
    ring[1].peer = next, ring[1].data = &mine;
    got[0] = -1;
    OK(ouro_exchange(g, ring, 2, NULL, NULL));
    CHECK(got[0] == prev);
    got[0] = -1;
    OK(ouro_group_start());
    OK(ouro_exchange(g, ring, 1, NULL, NULL));
    OK(ouro_exchange(g, ring + 1, 1, NULL, &work));
    OK(ouro_group_end());
    CHECK(ouro_work_status(work) == OURO_CODE_OK && got[0] == prev);
    ouro_work_destroy(work);
    OK(ouro_exchange(g, NULL, 0, NULL, NULL));
    REFUSED(ouro_exchange(g, NULL, 2, NULL, NULL), "transfers is null");
    ring[1].peer = N;
    REFUSED(ouro_exchange(g, ring, 2, NULL, NULL), "is not in the group");
  }
}

static void groups(ouro_context_t c, ouro_group_t world, int r) {
  ouro_group_t part = NULL, pair = NULL, smaller = NULL;
  ouro_group_options_t options = OURO_GROUP_OPTIONS;
  const int members[2] = {2, 0};
  int ranks[N] = {-1, -1, -1}, dead[N];
  ouro_shrink_report_t report = {NULL, N, -1, 0};
  char text[512];
  const char *text_of_error, *json_of_error;
  options.deadline_ms = 20000;
  report.dead = dead;
  OK(ouro_group_ranks(world, ranks));
  CHECK(ranks[0] == 0 && ranks[1] == 1 && ranks[2] == 2);
  CHECK(ouro_group_name(world) != NULL);
  OK(ouro_group_status(world));
  OK(ouro_group_explain(world, OURO_COLLECTIVE_ALL_REDUCE, 1024, OURO_DTYPE_F32, sum(), text, sizeof(text)));
  CHECK(strlen(text) > 0);
  REFUSED(ouro_group_explain(world, OURO_COLLECTIVE_ALL_REDUCE, 1024, OURO_DTYPE_F32, sum(), text, 1),
          "capacity");
  REFUSED(ouro_group_destroy(world), "context");

  OK(ouro_group_split(world, r == 1 ? -1 : 0, -r, &options, &part));
  CHECK((part == NULL) == (r == 1));
  if (r != 1) {
    int32_t one = 1, two = 0;
    CHECK(ouro_group_size(part) == 2 && ouro_group_rank(part) == (r == 2 ? 0 : 1));
    OK(ouro_all_reduce(part, &one, &two, 1, OURO_DTYPE_I32, sum(), NULL, NULL, NULL));
    CHECK(two == 2);
    OK(ouro_group_close(part));
    OK(ouro_group_destroy(part));

    OK(ouro_context_group(c, members, 2, "pair", NULL, &pair));
    CHECK(ouro_group_rank(pair) == (r == 2 ? 0 : 1));
    OK(ouro_barrier(pair, NULL, NULL));
  }
  OK(ouro_barrier(world, NULL, NULL)); /* both have left the barrier of `pair`, which the abort would hit */
  if (r != 1) {
    OK(ouro_group_abort(pair, "enough of it"));
    CHECK(ouro_group_status(pair) == OURO_CODE_ABORTED);
    CHECK(ouro_barrier(pair, NULL, NULL) == OURO_CODE_ABORTED);
    text_of_error = ouro_last_error();
    json_of_error = ouro_last_error_json();
    CHECK(strstr(text_of_error, "enough of it") != NULL && json_of_error[0] == '{');
    OK(ouro_group_status(world));
    CHECK(ouro_last_error() == text_of_error &&
          ouro_last_error_json() == json_of_error); /* the pointers are still valid */
    OK(ouro_group_shrink(pair, &report, &smaller));
    CHECK(report.dead_count == 0);
    CHECK(ouro_group_size(smaller) == 2);
    OK(ouro_barrier(smaller, NULL, NULL));
    OK(ouro_group_destroy(smaller));
    OK(ouro_group_destroy(pair));
  }
  OK(ouro_barrier(world, NULL, NULL));
}

static void memory(ouro_context_t c, ouro_group_t g) {
  void* data = NULL;
  int local = 0;
  int32_t* values;
  OK(ouro_alloc(c, 4096 * sizeof(int32_t), &data));
  CHECK(data != NULL);
  values = (int32_t*)data;
  CHECK(values[0] == 0 && values[4095] == 0);
  values[4095] = 5;
  OK(ouro_all_reduce(g, data, data, 4096, OURO_DTYPE_I32, sum(), NULL, NULL, NULL));
  CHECK(values[0] == 0 && values[4095] == 5 * N);
  OK(ouro_barrier(g, NULL, NULL));
  REFUSED(ouro_free(c, &local), "not allocated");
  OK(ouro_free(c, data));
  REFUSED(ouro_free(c, data), "not allocated");
  OK(ouro_free(c, NULL));
}

static void refusals(ouro_context_t c, ouro_group_t g) {
  float x = 1, y = 0;
  ouro_call_options_t options = OURO_CALL_OPTIONS;
  ouro_stream_t s = NULL;
  ouro_received_t info;
  ouro_group_t out = NULL;
  REFUSED(ouro_all_reduce(NULL, &x, &y, 1, OURO_DTYPE_F32, sum(), NULL, NULL, NULL), "group is null");
  REFUSED(ouro_all_reduce(g, NULL, &y, 1, OURO_DTYPE_F32, sum(), NULL, NULL, NULL), "in is null");
  REFUSED(ouro_all_reduce(g, &x, NULL, 1, OURO_DTYPE_F32, sum(), NULL, NULL, NULL), "out is null");
  REFUSED(ouro_all_reduce(g, &x, &y, 1, (ouro_dtype_t)99, sum(), NULL, NULL, NULL), "dtype 99");
  REFUSED(ouro_all_reduce(g, &x, &y, 1, OURO_DTYPE_F32, ouro_op((ouro_op_kind_t)77), NULL, NULL, NULL), "77");
  REFUSED(ouro_all_reduce(g, &x, &y, 1, OURO_DTYPE_F32, ouro_op(OURO_OP_BAND), NULL, NULL, NULL), "");
  options.numerics = (ouro_numerics_t)9;
  REFUSED(ouro_all_reduce(g, &x, &y, 1, OURO_DTYPE_F32, sum(), &options, NULL, NULL), "numerics 9");
  options.size = 1000;
  REFUSED(ouro_all_reduce(g, &x, &y, 1, OURO_DTYPE_F32, sum(), &options, NULL, NULL), "options->size");
  REFUSED(ouro_all_gather(g, &x, &y, (size_t)-1 / 2, OURO_DTYPE_F32, NULL, NULL, NULL), "count");
  REFUSED(ouro_broadcast(g, &x, &y, 1, OURO_DTYPE_F32, N, NULL, NULL, NULL), "");
  REFUSED(ouro_all_gather_v(g, &x, &y, NULL, OURO_DTYPE_F32, NULL, NULL, NULL), "counts is null");
  REFUSED(ouro_probe(g, 0, 0, NULL, &info), "found is null");
  REFUSED(ouro_context_group(c, NULL, 1, NULL, NULL, &out), "ranks is null");
  REFUSED(ouro_group_split(g, 0, 0, NULL, NULL), "out is null");
  REFUSED(ouro_work_wait(NULL, 0), "work is null");
  REFUSED(ouro_stream_synchronize(NULL, 0), "stream is null");
  OK(ouro_stream_create(OURO_PRIORITY_LOW, NULL, &s));
  REFUSED(ouro_recv(g, &x, 1, OURO_DTYPE_F32, 0, 0, 0, &info, s, NULL), "received");
  ouro_stream_destroy(s);
  REFUSED(ouro_stream_create((ouro_priority_t)5, NULL, &s), "ouro_priority_t");
  OK(ouro_group_status(g)); /* a wrong argument does not affect the group */
}

static void* rank(void* argument) {
  ouro_context_t c = (ouro_context_t)argument;
  const int r = ouro_context_rank(c);
  ouro_group_t g = NULL;
  CHECK(r >= 0 && r < N && ouro_context_size(c) == N);
  CHECK(ouro_context_local_rank(c) == r && ouro_context_local_size(c) == N);
  OK(ouro_context_world(c, &g));
  CHECK(ouro_group_rank(g) == r && ouro_group_size(g) == N);
  reductions(g, r);
  movement(g, r);
  streams(g, r);
  messages(g, r);
  groups(c, g, r);
  memory(c, g);
  refusals(c, g);
  OK(ouro_barrier(g, NULL, NULL));
  OK(ouro_context_close(c));
  OK(ouro_context_close(c));
  return NULL;
}

int main(void) {
  ouro_context_t contexts[N] = {NULL, NULL, NULL}, alone = NULL;
  ouro_init_options_t options = OURO_INIT_OPTIONS;
  ouro_unique_id_t id, other;
  pthread_t threads[N];
  int i;
  CHECK(strcmp(ouro_version(), "0.1.0") == 0);
  CHECK(strcmp(ouro_last_error(), "") == 0);
  CHECK(strcmp(ouro_code_name(OURO_CODE_INVALID), "invalid") == 0);
  CHECK(strcmp(ouro_code_name(-1), "unknown") == 0);
  CHECK(ouro_context_rank(NULL) == -1 && ouro_group_size(NULL) == -1 && ouro_work_test(NULL) == -1);
  CHECK(ouro_group_name(NULL) == NULL);
  REFUSED(ouro_context_create(NULL, &alone), "options is null");
  REFUSED(ouro_context_from_env(&options, NULL), "context is null");
  REFUSED(ouro_context_threads(2, NULL, NULL), "contexts is null");
  REFUSED(ouro_context_close(NULL), "context is null");
  ouro_context_destroy(NULL);
  ouro_work_destroy(NULL);
  ouro_stream_destroy(NULL);
  OK(ouro_group_destroy(NULL));

  OK(ouro_unique_id_create(&id));
  OK(ouro_unique_id_create(&other));
  CHECK(memcmp(&id, &other, sizeof(id)) != 0);
  options.rank = 0;
  options.world_size = 1;
  options.id = &id;
  OK(ouro_context_create(&options, &alone));
  if (alone) CHECK(ouro_context_size(alone) == 1);
  ouro_context_destroy(alone);

  if (ouro_context_threads(N, NULL, contexts) != OURO_CODE_OK) {
    fail(__LINE__, "ouro_context_threads");
    return 1;
  }
  for (i = 0; i < N; ++i) pthread_create(&threads[i], NULL, rank, contexts[i]);
  for (i = 0; i < N; ++i) pthread_join(threads[i], NULL);
  for (i = 0; i < N; ++i) ouro_context_destroy(contexts[i]);
  if (failures == 0) printf("all checks of the C interface hold\n");
  return failures == 0 ? 0 : 1;
}
