/* A wall clock that can be stepped, for one tree of processes: a library for LD_PRELOAD.
 *
 * The file that STEPPED_CLOCK names holds the offset in seconds as a 64-bit integer. It is mapped, so
 * a step is seen by all processes at once. Only the wall clock is changed, as when an administrator
 * or NTP sets it: the monotonic clock, file times and other processes are not. A wait until a time of
 * the wall clock ends after the duration that its caller meant.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

/* Seconds since the start of the machine are smaller than this, seconds since 1970 are larger. */
#define FIRST_WALL_SECOND 1000000000

static volatile int64_t *mapped;

__attribute__((constructor)) static void map_offset(void) {
  const char *name = getenv("STEPPED_CLOCK");
  int file = name == NULL ? -1 : open(name, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  void *found = mmap(NULL, sizeof *mapped, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (found != MAP_FAILED) mapped = found;
}

static int64_t offset(void) { return mapped == NULL ? 0 : *mapped; }

static void *next(const char *name) {
  /* Without a version some systems return the first implementation of a condition variable, which
   * does not fit to the others. */
  void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
  return found != NULL ? found : dlsym(RTLD_NEXT, name);
}

#define REAL(type, name, ...)                      \
  static type (*real)(__VA_ARGS__);                \
  if (real == NULL) real = (type (*)(__VA_ARGS__))next(name)

int clock_gettime(clockid_t clock, struct timespec *now) {
  REAL(int, "clock_gettime", clockid_t, struct timespec *);
  int failed = real(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec at;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &at);
  now->tv_sec = at.tv_sec;
  now->tv_usec = at.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *result) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  if (result != NULL) *result = at.tv_sec;
  return at.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
  if (base != TIME_UTC) return 0;
  clock_gettime(CLOCK_REALTIME, now);
  return base;
}

/* What a deadline of the wall clock is for the kernel, whose clock was not stepped. */
static struct timespec unstepped(const struct timespec *deadline) {
  struct timespec real = *deadline;
  if (real.tv_sec > FIRST_WALL_SECOND) real.tv_sec -= offset();
  return real;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
  REAL(int, "pthread_cond_timedwait", pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  struct timespec at = unstepped(deadline);
  return real(condition, mutex, &at);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex,
                            const struct timespec *restrict deadline) {
  REAL(int, "pthread_mutex_timedlock", pthread_mutex_t *, const struct timespec *);
  struct timespec at = unstepped(deadline);
  return real(mutex, &at);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline) {
  REAL(int, "sem_timedwait", sem_t *, const struct timespec *);
  struct timespec at = unstepped(deadline);
  return real(semaphore, &at);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex,
                  const struct timespec *restrict deadline) {
  REAL(int, "cnd_timedwait", cnd_t *, mtx_t *, const struct timespec *);
  struct timespec at = unstepped(deadline);
  return real(condition, mutex, &at);
}

int mtx_timedlock(mtx_t *restrict mutex, const struct timespec *restrict deadline) {
  REAL(int, "mtx_timedlock", mtx_t *, const struct timespec *);
  struct timespec at = unstepped(deadline);
  return real(mutex, &at);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *wanted,
                    struct timespec *left) {
  REAL(int, "clock_nanosleep", clockid_t, int, const struct timespec *, struct timespec *);
  struct timespec at = flags & TIMER_ABSTIME ? unstepped(wanted) : *wanted;
  return real(clock, flags, &at, left);
}
