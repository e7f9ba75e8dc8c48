/* Opens libouro.so.0 from a program that does not link it, and uses the library's thread-local state: in a
 * thread that existed before, and in one that is started later. Usage: test_dlopen LIBRARY. */
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>

typedef int (*Call)(void);
typedef const char* (*Text)(void);

static void* library;
static sem_t opened;
static int failures;

static void* find(const char* name) {
  void* found = dlsym(library, name);
  if (!found) {
    fprintf(stderr, "%s: %s\n", name, dlerror());
    __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
  }
  return found;
}

/* A batch belongs to its thread, and so does the last error. */
static void* use(void* waits) {
  Call start, end;
  Text last;
  if (waits) sem_wait(&opened);
  *(void**)&start = find("ouro_group_start");
  *(void**)&end = find("ouro_group_end");
  *(void**)&last = find("ouro_last_error");
  if (!start || !end || !last) return NULL;
  if (start() != 0 || end() != 0 || end() == 0) {
    fprintf(stderr, "a batch does not open and close: %s\n", last());
    __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

int main(int argc, char** argv) {
  pthread_t before, after;
  Text version;
  if (argc != 2) return 2;
  sem_init(&opened, 0, 0);
  pthread_create(&before, NULL, use, argv);
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "dlopen: %s\n", dlerror());
    return 1;
  }
  *(void**)&version = find("ouro_version");
  if (version) printf("ouro %s\n", version());
  use(NULL);
  sem_post(&opened);
  pthread_create(&after, NULL, use, NULL);
  pthread_join(before, NULL);
  pthread_join(after, NULL);
  return failures != 0;
}
