/* The C interface from C99: a sum of all ranks, a broadcast on a stream, and the text of an error. Run it
 * with: ouro-run -n 3 example-c-interface */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ouro/ouro.h"

/* Every call returns a code; ouro_last_error() returns the text of this thread's last error. */
static void check(int code) {
  if (code == OURO_CODE_OK) return;
  fprintf(stderr, "%s\n", ouro_last_error());
  exit(1);
}

int main(void) {
  enum { COUNT = 1000 };
  ouro_context_t context;
  ouro_group_t world; /* borrowed: it lives as long as the context */
  ouro_stream_t stream;
  ouro_work_t work;
  ouro_call_options_t options = OURO_CALL_OPTIONS; /* always initialised by its macro */
  float in[COUNT], out[COUNT];
  char name[32] = "";
  int i, rank, size;

  check(ouro_context_from_env(NULL, &context)); /* null: all defaults */
  check(ouro_context_world(context, &world));
  rank = ouro_context_rank(context);
  size = ouro_context_size(context);

  for (i = 0; i < COUNT; ++i) in[i] = (float)(rank + i);
  options.numerics = OURO_NUMERICS_CANONICAL;
  check(ouro_all_reduce(world, in, out, COUNT, OURO_DTYPE_F32, ouro_op(OURO_OP_SUM), &options, NULL, NULL));
  for (i = 0; i < COUNT; ++i)
    if (out[i] != (float)(size * (size - 1) / 2 + size * i)) return fprintf(stderr, "wrong sum\n"), 1;

  /* On a stream, the call returns immediately; the buffer must live until the work has ended. */
  if (rank == 0) strcpy(name, "ouro");
  check(ouro_stream_create(OURO_PRIORITY_NORMAL, "names", &stream));
  check(ouro_broadcast(world, name, name, sizeof name, OURO_DTYPE_U8, 0, NULL, stream, &work));
  check(ouro_work_wait(work, -1)); /* -1: the group's own deadline */
  ouro_work_destroy(work);
  ouro_stream_destroy(stream);

  /* A wrong argument is reported by the call; nothing happens, and the group stays usable. */
  if (ouro_broadcast(world, name, name, sizeof name, OURO_DTYPE_U8, size, NULL, NULL, NULL) !=
      OURO_CODE_INVALID)
    return fprintf(stderr, "a root that does not exist was accepted\n"), 1;
  if (rank == 0) printf("as expected: %s\n", ouro_last_error());

  check(ouro_barrier(world, NULL, NULL));
  printf("rank %d of %d: out[0] = %g, name = %s\n", rank, size, (double)out[0], name);
  check(ouro_context_close(context));
  ouro_context_destroy(context);
  return 0;
}
