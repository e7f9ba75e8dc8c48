/** The constants and plain structures of the C interface: codes, element types, reductions, options; pure
 * C99. Included by ouro.h, which is the header for programs.
 *
 * @file */
#ifndef OURO_OURO_VALUES_H
#define OURO_OURO_VALUES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enumerations are passed as int: a value that this version does not know is reported as an error. */

/** The coarse class of a failure: one of the OURO_CODE constants. */
typedef int ouro_code_t;
/** Values of ouro_code_t. */
enum {
  OURO_CODE_OK,          /**< success */
  OURO_CODE_INVALID,     /**< wrong argument: nothing happened and the group stays usable; or the ranks' calls
                            differ, which is sticky in the group ("mismatch"); or this rank may not join */
  OURO_CODE_UNSUPPORTED, /**< legal, but not in this build or version */
  OURO_CODE_TIMEOUT,     /**< a deadline has passed */
  OURO_CODE_PEER_LOST,   /**< a rank died or cannot be reached; sticky in the group */
  OURO_CODE_SYSTEM,      /**< memory, files, the operating system, damaged data */
  OURO_CODE_CUDA,        /**< an error of the GPU or its driver */
  OURO_CODE_ABORTED      /**< closed or aborted, or the other ranks continued without this rank */
};

/** An element type: one of the OURO_DTYPE constants. */
typedef int ouro_dtype_t;
/** Values of ouro_dtype_t. */
enum {
  OURO_DTYPE_I8,     /**< signed, 8 bits */
  OURO_DTYPE_U8,     /**< unsigned, 8 bits */
  OURO_DTYPE_I16,    /**< signed, 16 bits */
  OURO_DTYPE_U16,    /**< unsigned, 16 bits */
  OURO_DTYPE_I32,    /**< signed, 32 bits */
  OURO_DTYPE_U32,    /**< unsigned, 32 bits */
  OURO_DTYPE_I64,    /**< signed, 64 bits */
  OURO_DTYPE_U64,    /**< unsigned, 64 bits */
  OURO_DTYPE_F16,    /**< IEEE half precision */
  OURO_DTYPE_F32,    /**< IEEE single precision */
  OURO_DTYPE_F64,    /**< IEEE double precision */
  OURO_DTYPE_BF16,   /**< bfloat16 */
  OURO_DTYPE_F8E4M3, /**< 8-bit float, 4 bits of exponent */
  OURO_DTYPE_F8E5M2, /**< 8-bit float, 5 bits of exponent */
  OURO_DTYPE_BOOLEAN /**< one byte, 0 or 1 */
};

/** avg divides by the number of ranks. premulsum first multiplies each rank's input by that rank's scalar.
 * band..bxor are bitwise, land..lxor logical; both need integers or booleans. */
typedef int ouro_op_kind_t;
/** Values of ouro_op_kind_t. */
enum {
  OURO_OP_SUM,       /**< sum; integers wrap modulo 2^bits */
  OURO_OP_PROD,      /**< product; integers wrap modulo 2^bits */
  OURO_OP_MAX,       /**< maximum; NaN propagates */
  OURO_OP_MIN,       /**< minimum; NaN propagates */
  OURO_OP_AVG,       /**< sum divided by the number of ranks */
  OURO_OP_PREMULSUM, /**< sum of inputs, each first multiplied by its rank's scalar */
  OURO_OP_BAND,      /**< bitwise and */
  OURO_OP_BOR,       /**< bitwise or */
  OURO_OP_BXOR,      /**< bitwise exclusive or */
  OURO_OP_LAND,      /**< logical and */
  OURO_OP_LOR,       /**< logical or */
  OURO_OP_LXOR       /**< logical exclusive or */
};

/** fast: quickest algorithm; equal calls give equal bits. canonical: reduced in rank order and rounded
 * once; the bits depend only on the inputs and the number of ranks. inherit: the setting the group was
 * made with. */
typedef int ouro_numerics_t;
/** Values of ouro_numerics_t. */
enum {
  OURO_NUMERICS_INHERIT,  /**< the setting the group was made with */
  OURO_NUMERICS_FAST,     /**< quickest algorithm */
  OURO_NUMERICS_CANONICAL /**< reduced in rank order, rounded once */
};

/** Where the buffers of a call are. any: on a rank that has a GPU, determined from their addresses; memory
 * that the host can also reach (pinned, managed) counts as host memory. The other values are trusted, which
 * saves two driver queries per call. */
typedef int ouro_memory_t;
/** Values of ouro_memory_t. */
enum {
  OURO_MEMORY_ANY,   /**< determined from the addresses */
  OURO_MEMORY_HOST,  /**< host memory */
  OURO_MEMORY_DEVICE /**< memory of this rank's GPU */
};

/** Priority of a stream: one of the OURO_PRIORITY constants. */
typedef int ouro_priority_t;
/** Values of ouro_priority_t. */
enum {
  OURO_PRIORITY_LOW,    /**< less urgent than normal */
  OURO_PRIORITY_NORMAL, /**< the default */
  OURO_PRIORITY_HIGH    /**< more urgent than normal */
};

/** A collective, for ouro_group_explain(): one of the OURO_COLLECTIVE constants. */
typedef int ouro_collective_t;
/** Values of ouro_collective_t. */
enum {
  OURO_COLLECTIVE_NONE,           /**< no collective */
  OURO_COLLECTIVE_ALL_REDUCE,     /**< ouro_all_reduce() */
  OURO_COLLECTIVE_REDUCE_SCATTER, /**< ouro_reduce_scatter() */
  OURO_COLLECTIVE_ALL_GATHER,     /**< ouro_all_gather() */
  OURO_COLLECTIVE_BROADCAST,      /**< ouro_broadcast() */
  OURO_COLLECTIVE_REDUCE,         /**< ouro_reduce() */
  OURO_COLLECTIVE_GATHER,         /**< ouro_gather() */
  OURO_COLLECTIVE_SCATTER,        /**< ouro_scatter() */
  OURO_COLLECTIVE_ALL_TO_ALL,     /**< ouro_all_to_all() */
  OURO_COLLECTIVE_BARRIER         /**< ouro_barrier() */
};

/** A reduction. `real` is the scalar of premulsum for floating-point types, `integer` for integer types. */
typedef struct {
  ouro_op_kind_t kind; /**< which reduction */
  double real;         /**< premulsum: the scalar for floating-point types */
  int64_t integer;     /**< premulsum: the scalar for integer types; INT64_MIN: `real` is not an integer and
                          integer types are OURO_CODE_INVALID, unless `real` is -2^63 or 2^63 */
} ouro_op_t;

/** A reduction other than premulsum. */
static inline ouro_op_t ouro_op(ouro_op_kind_t kind) {
  ouro_op_t op = {kind, 1.0, 1};
  return op;
}
/** premulsum by x. For integer types, x must be an integer that fits in 64 bits. */
static inline ouro_op_t ouro_op_premul(double x) {
  const double half = 9223372036854775808.0; /* 2^63 */
  ouro_op_t op = {OURO_OP_PREMULSUM, x, INT64_MIN};
  if (x >= -half && x < half && (double)(int64_t)x == x)
    op.integer = (int64_t)x;
  else if (x >= half && x < 2 * half)
    op.integer = (int64_t)(uint64_t)x;
  return op;
}
/** premulsum by x, exact for 64-bit integers. */
static inline ouro_op_t ouro_op_premul_integer(int64_t x) {
  ouro_op_t op = {OURO_OP_PREMULSUM, (double)x, x};
  return op;
}

/** 128 opaque bytes that name one job. One rank creates it and passes it to all others over any channel. */
typedef struct {
  unsigned char bytes[128]; /**< opaque */
} ouro_unique_id_t;

/** Option structures begin with their own size, so that later versions can add members at the end.
 * Initialise them with the macros below; a null pointer means all defaults. OURO_JOIN_DEADLINE,
 * OURO_DEADLINE and OURO_LATE (in seconds) in the environment override the three times below. */
typedef struct {
  size_t size;    /**< size of this structure in bytes; set by the initialising macro */
  int rank;       /**< rank of this process in the job; -1: from the launcher's environment variables */
  int world_size; /**< number of ranks in the job; -1: from the launcher's environment variables */
  int local_rank; /**< rank among the ranks of this host; -1: same as rank */
  int local_size; /**< number of ranks on this host; -1: same as world_size */
  const ouro_unique_id_t* id; /**< null: derived from the launcher's variables */
  int64_t join_deadline_ms;   /**< deadline for all ranks to join; 0: 300000 */
  int64_t deadline_ms;        /**< deadline of each operation; 0: 600000 */
  int64_t late_after_ms; /**< after this time, ranks that have not entered an operation are reported by name;
                            0: 10000 */
  ouro_numerics_t numerics; /**< numerics of the job; inherit: OURO_NUMERICS, else fast */
  int device; /**< index of this rank's GPU as seen by its process, or one of the two constants below */
} ouro_init_options_t;
#define OURO_DEVICE_LOCAL (-1) /**< local rank modulo the number of GPUs; none if there are none */
#define OURO_DEVICE_NONE (-2)  /**< this rank uses no GPU */
/** All defaults of ouro_init_options_t. */
#define OURO_INIT_OPTIONS \
  { sizeof(ouro_init_options_t), -1, -1, -1, -1, NULL, 0, 0, 0, OURO_NUMERICS_INHERIT, OURO_DEVICE_LOCAL }

/** Options of a group; a null pointer means all defaults. */
typedef struct {
  size_t size;              /**< size of this structure in bytes; set by the initialising macro */
  int64_t deadline_ms;      /**< deadline of each operation; 0: the context's */
  ouro_numerics_t numerics; /**< numerics of the group's operations; inherit: the context's */
} ouro_group_options_t;
/** All defaults of ouro_group_options_t. */
#define OURO_GROUP_OPTIONS \
  { sizeof(ouro_group_options_t), 0, OURO_NUMERICS_INHERIT }

/** Options of one call; a null pointer means all defaults. */
typedef struct {
  size_t size;              /**< size of this structure in bytes; set by the initialising macro */
  ouro_numerics_t numerics; /**< inherit: the group's */
  const char*
      algorithm; /**< name ("ring", "direct", ...); null: OURO_ALGO if set, else selected; "auto": selected */
  ouro_memory_t memory; /**< where the buffers are */
} ouro_call_options_t;
/** All defaults of ouro_call_options_t. */
#define OURO_CALL_OPTIONS \
  { sizeof(ouro_call_options_t), OURO_NUMERICS_INHERIT, NULL, OURO_MEMORY_ANY }

/** The result of ouro_group_shrink(). The caller sets dead (an array, may be null) and capacity; the first
 * min(capacity, dead_count) elements of dead are written. */
typedef struct {
  int* dead;           /**< ranks of the old group that are gone */
  int capacity;        /**< number of elements that fit into dead */
  int dead_count;      /**< out: number of dead ranks */
  uint64_t resume_seq; /**< out: lowest sequence number that some survivor did not complete */
} ouro_shrink_report_t;

/** In place of a source rank: a message from any rank of the group. */
#define OURO_ANY_SOURCE (-1)

/** Describes a message that was received or is waiting. */
typedef struct {
  int source;   /**< rank of the sender in the group */
  int tag;      /**< tag it was sent with */
  size_t bytes; /**< length of the message */
} ouro_received_t;

#ifdef __cplusplus
}
#endif
#endif /* OURO_OURO_VALUES_H */
