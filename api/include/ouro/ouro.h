/** ouro: collectives among ranks. The C interface, for other languages and for C programs; pure C99.
 * The C++ interface is ouro.hpp; the two may be mixed in one program.
 *
 * Every function that returns `int` and is not named as returning something else returns an ouro_code: 0 is
 * success, anything else a failure that ouro_last_error() puts into words. Out-parameters are written on
 * success only. A null pointer where one is needed is OURO_CODE_INVALID. Counts are in elements, sizes in
 * bytes, times in milliseconds. Handles may be used from any thread; a handle must not be destroyed while
 * another thread uses it. Buffers are memory of the host or of the rank's own GPU; see ouro_memory_t.
 *
 * What ouro.hpp has and this has not: hosts that meet without a launcher's help (InitOptions::address, port,
 * rendezvous, host_id, generation; the environment's OURO_RENDEZVOUS and OURO_HOSTID hold), one_gpu_each, the
 * generation and the deadline of a group, the hosts of ranks, alloc_shared, matched messages and those of an
 * exact length, waits that ask the caller or that another thread cancels, functions of the caller's in
 * streams, events, pools of streams, in_batch, log_warning, the device and the numerics of explain, mix and
 * all else of ouro/train.
 *
 * @file */
#ifndef OURO_OURO_H
#define OURO_OURO_H

#include <stddef.h>
#include <stdint.h>

#include "ouro/ouro_values.h"

#ifndef OURO_API
#define OURO_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ouro_context* ouro_context_t; /**< one rank's membership in a job */
typedef struct ouro_group* ouro_group_t;     /**< an ordered set of ranks that communicate */
typedef struct ouro_stream* ouro_stream_t;   /**< an ordered queue of operations, of the host or of a GPU */
typedef struct ouro_work* ouro_work_t;       /**< an operation in flight */

/** @defgroup c_errors C: library and errors
 * @{ */

/** Library version, "0.1.0". Never fails. */
OURO_API const char* ouro_version(void);
/** "ok", "invalid", ..., or "unknown" for a number that is no code. */
OURO_API const char* ouro_code_name(int code);
/** What went wrong in the last call of this thread that failed, one line; "" if none has. Success does not
 * clear it. Valid until the next failing call of this thread. */
OURO_API const char* ouro_last_error(void);
/** The same failure as one JSON object: reason, culprit rank, host, pid, operation, sequence number, dead
 * ranks. */
OURO_API const char* ouro_last_error_json(void);

/** GPUs that this process can use; 0 without a driver. Never fails. */
OURO_API int ouro_device_count(void);

/** @}
 * @defgroup c_contexts C: contexts
 * @{ */

/** Makes the name of a new job. Errors: system (no random numbers). */
OURO_API int ouro_unique_id_create(ouro_unique_id_t* id);
/** Rank and size from the launcher's variables: ouro-run, torchrun, Open MPI, PMIx, PMI (MPICH, Intel MPI),
 * MVAPICH, SLURM; else one rank. Collective over the job. Errors: invalid, timeout (ranks that never joined),
 * system. */
OURO_API int ouro_context_from_env(const ouro_init_options_t* options, ouro_context_t* context);
/** Collective over options->world_size ranks that share options->id. Errors as above. */
OURO_API int ouro_context_create(const ouro_init_options_t* options, ouro_context_t* context);
/** n ranks in this process, 1 to 256: writes n contexts, each to be driven by a thread of its own. */
OURO_API int ouro_context_threads(int n, const ouro_init_options_t* options, ouro_context_t* contexts);
/** Leaves the job in good order. Idempotent. Groups of the context are unusable afterwards. */
OURO_API int ouro_context_close(ouro_context_t context);
/** Frees the handle, its world group and its memory; never waits for peers. Null is ignored. */
OURO_API void ouro_context_destroy(ouro_context_t context);
/* The following return the number asked for, or -1 for a null handle (ouro_last_error says so). */
/** This rank in the job; -1 for a null handle. */
OURO_API int ouro_context_rank(ouro_context_t context);
/** Ranks of the job; -1 for a null handle. */
OURO_API int ouro_context_size(ouro_context_t context);
/** This rank among those of its host; -1 for a null handle. */
OURO_API int ouro_context_local_rank(ouro_context_t context);
/** Ranks of this host; -1 for a null handle. */
OURO_API int ouro_context_local_size(ouro_context_t context);
/** This rank's GPU, as its process counts them; -1: none. */
OURO_API int ouro_context_device(ouro_context_t context);
/** `bytes` of zero-filled memory that all ranks of the node can map: operations on it need no copy. */
OURO_API int ouro_alloc(ouro_context_t context, size_t bytes, void** data);
/** The same on this rank's GPU. Errors: invalid (the rank has none), system. */
OURO_API int ouro_alloc_device(ouro_context_t context, size_t bytes, void** data);
/** Frees what ouro_alloc or ouro_alloc_device of the same context returned; operations on it must have ended.
 * Null is ignored. */
OURO_API int ouro_free(ouro_context_t context, void* data);

/** @}
 * @defgroup c_groups C: groups
 * @{ */

/** The group of all ranks. Borrowed: it lives as long as the context and must not be destroyed. */
OURO_API int ouro_context_world(ouro_context_t context, ouro_group_t* group);
/** A group over the given world ranks, in that order. Members only call this; it does not communicate. Groups
 * with equal ranks and tag are matched by how many of them each member has made. `tag`, `options`: may be
 * null. */
OURO_API int ouro_context_group(ouro_context_t context, const int* ranks, int count, const char* tag,
                                const ouro_group_options_t* options, ouro_group_t* group);
/** Collective: members with the same color form a group, ordered by key, then rank. Color -1: no group (*out
 * is set to null). Other negative colors are invalid. */
OURO_API int ouro_group_split(ouro_group_t group, int color, int key, const ouro_group_options_t* options,
                              ouro_group_t* out);
/** Collective over the survivors of a failure: a group without the dead. `report` may be null. */
OURO_API int ouro_group_shrink(ouro_group_t group, ouro_shrink_report_t* report, ouro_group_t* out);
/** This rank in the group; -1 for a null handle (ouro_last_error says so). */
OURO_API int ouro_group_rank(ouro_group_t group);
/** Members of the group; -1 for a null handle. */
OURO_API int ouro_group_size(ouro_group_t group);
/** World rank of each member, into an array of ouro_group_size(group). */
OURO_API int ouro_group_ranks(ouro_group_t group, int* ranks);
/** Its name, valid as long as the handle; null for a null handle. */
OURO_API const char* ouro_group_name(ouro_group_t group);
/** The first error that struck this group, as a code. Never blocks. */
OURO_API int ouro_group_status(ouro_group_t group);
/** Ends all pending and later operations of this group on every rank within a second. `why` may be null. */
OURO_API int ouro_group_abort(ouro_group_t group, const char* why);
/** Drains what was submitted and leaves. Idempotent. Invalid in a callback of ouro_work_then while operations
 * are in flight: they may be queued behind it. The same holds for ouro_group_shrink and ouro_context_close.
 */
OURO_API int ouro_group_close(ouro_group_t group);
/** Frees the handle; never waits for peers. Null is ignored; invalid for a world group. */
OURO_API int ouro_group_destroy(ouro_group_t group);
/** Which algorithm would run, over what, and why: text of at most capacity bytes, zero-terminated. */
OURO_API int ouro_group_explain(ouro_group_t group, ouro_collective_t collective, size_t count,
                                ouro_dtype_t dtype, ouro_op_t op, char* text, size_t capacity);

/** @}
 * @defgroup c_streams C: streams and work
 * @{ */

/** A stream of the host, with a thread of its own. `name` may be null. Errors: system (no thread). */
OURO_API int ouro_stream_create(ouro_priority_t priority, const char* name, ouro_stream_t* stream);
/** A new stream of GPU `device`. Errors: invalid (no such device), cuda. */
OURO_API int ouro_stream_create_device(int device, ouro_priority_t priority, ouro_stream_t* stream);
/** The caller's own cudaStream_t of GPU `device` (null: the legacy default stream), which outlives the
 * handle. Operations on it follow the caller's work there and precede what is enqueued later, and may be
 * captured into a graph with it: on all ranks alike. */
OURO_API int ouro_stream_cuda(void* cuda_stream, int device, ouro_stream_t* stream);
/** The GPU of a stream; -1: a stream of the host. */
OURO_API int ouro_stream_device(ouro_stream_t stream);
/** The cudaStream_t of a stream of a GPU; null for streams of the host. */
OURO_API void* ouro_stream_handle(ouro_stream_t stream);
/** Waits for what is enqueued now. The first failure of anything that ran on the stream since this last
 * returned one or success, whether or not a work handle told it before; timeout (`deadline_ms` passed) takes
 * none away. Negative: no deadline of its own. */
OURO_API int ouro_stream_synchronize(ouro_stream_t stream, int64_t deadline_ms);
/** Runs what is queued, then frees the handle. Null is ignored. */
OURO_API void ouro_stream_destroy(ouro_stream_t stream);

/** Blocks until the operation has ended, and returns its outcome; timeout if `deadline_ms` passes first (the
 * operation goes on). Any number of times, from any thread. Negative: the group's deadline governs. */
OURO_API int ouro_work_wait(ouro_work_t work, int64_t deadline_ms);
/** Returns 1 if it has ended (well or not), 0 if not, -1 for a null handle. Never blocks. */
OURO_API int ouro_work_test(ouro_work_t work);
/** OURO_CODE_OK while in flight; the outcome afterwards. */
OURO_API int ouro_work_status(ouro_work_t work);
/** Calls f(code, message, argument) once it has ended: at once in this thread if it already has, else in the
 * stream's thread. `message` is valid during the call. f must not throw, nor wait for what is queued behind
 * it; it may destroy groups and contexts, whose queued operations then end as aborted. */
OURO_API int ouro_work_then(ouro_work_t work, void (*f)(int code, const char* message, void* argument),
                            void* argument);
/** Frees the handle; the operation goes on. Null is ignored. */
OURO_API void ouro_work_destroy(ouro_work_t work);

/** @}
 * @defgroup c_operations C: operations
 * Collective over the group. `options` may be null. Without a stream (null) a call blocks and runs in the
 * caller. With one it is enqueued in order and returns at once; buffers must live until it has ended. Buffers
 * on the rank's GPU go into a stream of that GPU: the given one, or one of the group's own, for which they
 * must be ready when the call is made; input and output are on one device. `work`
 * may be null; else it receives a handle, to be destroyed, with or without a stream. Between ouro_group_start
 * and ouro_group_end calls are deferred. In place: out == in exactly (all_gather: in is the caller's block of
 * out; reduce_scatter: out is the caller's block of in). Zero counts are legal and buffers may then be null.
 * `count` is per rank as stated; `size` is ouro_group_size(group); array parameters have `size` elements.
 * @{ */

/** out[i] = in_0[i] (+) ... (+) in_{size-1}[i]; count elements each. */
OURO_API int ouro_all_reduce(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                             ouro_op_t op, const ouro_call_options_t* options, ouro_stream_t stream,
                             ouro_work_t* work);
/** As all_reduce, left on `root` only; out is ignored elsewhere. */
OURO_API int ouro_reduce(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                         ouro_op_t op, int root, const ouro_call_options_t* options, ouro_stream_t stream,
                         ouro_work_t* work);
/** in: size * count elements; out: count elements, block `rank` of the reduction. */
OURO_API int ouro_reduce_scatter(ouro_group_t group, const void* in, void* out, size_t count,
                                 ouro_dtype_t dtype, ouro_op_t op, const ouro_call_options_t* options,
                                 ouro_stream_t stream, ouro_work_t* work);
/** Block r has counts[r] elements (same array on all ranks); in holds all blocks, out the caller's. */
OURO_API int ouro_reduce_scatter_v(ouro_group_t group, const void* in, void* out, const size_t* counts,
                                   ouro_dtype_t dtype, ouro_op_t op, const ouro_call_options_t* options,
                                   ouro_stream_t stream, ouro_work_t* work);
/** in: count elements; out: size * count elements, block r is rank r's input. */
OURO_API int ouro_all_gather(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                             const ouro_call_options_t* options, ouro_stream_t stream, ouro_work_t* work);
/** Block r has counts[r] elements (same array on all ranks); in is the caller's block, out holds all. */
OURO_API int ouro_all_gather_v(ouro_group_t group, const void* in, void* out, const size_t* counts,
                               ouro_dtype_t dtype, const ouro_call_options_t* options, ouro_stream_t stream,
                               ouro_work_t* work);
/** count elements from in on root to out on all ranks; in is ignored elsewhere. */
OURO_API int ouro_broadcast(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                            int root, const ouro_call_options_t* options, ouro_stream_t stream,
                            ouro_work_t* work);
/** in: count elements; root's out: size * count elements, ignored elsewhere. */
OURO_API int ouro_gather(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                         int root, const ouro_call_options_t* options, ouro_stream_t stream,
                         ouro_work_t* work);
/** Root's in: size * count elements, ignored elsewhere; out: count elements. */
OURO_API int ouro_scatter(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                          int root, const ouro_call_options_t* options, ouro_stream_t stream,
                          ouro_work_t* work);
/** in, out: size * count elements; block j of in goes to rank j, block i of out comes from rank i. */
OURO_API int ouro_all_to_all(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                             const ouro_call_options_t* options, ouro_stream_t stream, ouro_work_t* work);
/** send_counts[j] elements, in order, go to rank j; recv_counts[i] come from rank i. */
OURO_API int ouro_all_to_all_v(ouro_group_t group, const void* in, void* out, const size_t* send_counts,
                               const size_t* recv_counts, ouro_dtype_t dtype,
                               const ouro_call_options_t* options, ouro_stream_t stream, ouro_work_t* work);
/** Returns (or completes) on each rank after all ranks have entered. */
OURO_API int ouro_barrier(ouro_group_t group, ouro_stream_t stream, ouro_work_t* work);

/** @}
 * @defgroup c_messages C: messages and batches
 * Between two ranks of a group; not collective. Order is kept per (source, destination, tag). Tags:
 * 0..2^31-1.
 * @{ */

/** Returns once the buffer may be reused. Zero counts are messages, too. */
OURO_API int ouro_send(ouro_group_t group, const void* data, size_t count, ouro_dtype_t dtype, int dst,
                       int tag, ouro_stream_t stream, ouro_work_t* work);
/** Receives one message of at most `count` elements; a longer one is invalid and stays queued. `deadline_ms`
 * 0: the group's. `received` may be null. With a stream, and between ouro_group_start and ouro_group_end,
 * `received` must be null and `deadline_ms` 0: the call returns before the message is here. */
OURO_API int ouro_recv(ouro_group_t group, void* data, size_t count, ouro_dtype_t dtype, int src, int tag,
                       int64_t deadline_ms, ouro_received_t* received, ouro_stream_t stream,
                       ouro_work_t* work);
/** *found = 1 and *received is the message that ouro_recv(src, tag) would take, else *found = 0. Never
 * blocks.
 */
OURO_API int ouro_probe(ouro_group_t group, int src, int tag, int* found, ouro_received_t* received);

/** Operations called by this thread until the matching end are deferred and submitted together. Nests. */
OURO_API int ouro_group_start(void);
/** Submits. Blocks unless all operations were given streams. Returns the first error; an argument error drops
 * all. */
OURO_API int ouro_group_end(void);

/** @} */

#ifdef __cplusplus
}
#endif
#endif
