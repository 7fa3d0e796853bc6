/*
 * Moves the wall clock of the process that it is preloaded into, its monotonic clocks, or both.
 *
 * $TEST_CLOCK names a file with two copies of one setting, for the wall clock; $TEST_MONOTONIC_CLOCK one for
 * the monotonic clocks. Whoever changes it writes the first copy, then the second one; it is read in the other
 * order, so two copies that are equal are a setting that was meant. The file is mapped, so that a change counts
 * from the next look at the clock.
 *
 * It asks the kernel itself: looking for the function that it hides would allocate, and the
 * allocator of a server may ask for the time.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

struct setting {
    int64_t ahead;    /* ns, at the moment `since` */
    int64_t since;    /* ns since 1970, on the true wall clock */
    int64_t too_fast; /* thousandths by which it runs too fast since then */
};

/* Two copies each, or none: before they are set up, and of a clock that stays right. */
static const volatile struct setting *of_wall, *of_monotonic;

static const volatile struct setting *mapped(const char *variable)
{
    const char *path = getenv(variable);
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return NULL;
    void *map = mmap(NULL, 2 * sizeof(struct setting), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    return map == MAP_FAILED ? NULL : map;
}

__attribute__((constructor)) static void set_up(void)
{
    of_wall = mapped("TEST_CLOCK");
    of_monotonic = mapped("TEST_MONOTONIC_CLOCK");
}

static const volatile struct setting *settings_of(clockid_t clock)
{
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        return of_wall;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_BOOTTIME:
        return of_monotonic;
    default:
        return NULL;
    }
}

static int64_t nanos(const struct timespec *time)
{
    return time->tv_sec * SECOND + time->tv_nsec;
}

static struct setting current(const volatile struct setting *settings)
{
    struct setting first, second;
    do {
        second = settings[1];
        __sync_synchronize();
        first = settings[0];
    } while (first.ahead != second.ahead || first.since != second.since
             || first.too_fast != second.too_fast);
    return first;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    if (syscall(SYS_clock_gettime, clock, out) != 0)
        return -1;
    const volatile struct setting *settings = settings_of(clock);
    /* One look where one will do: a clock that was made to stand still must not jitter. */
    struct timespec wall = *out;
    if (settings
        && (clock == CLOCK_REALTIME || syscall(SYS_clock_gettime, CLOCK_REALTIME, &wall) == 0)) {
        struct setting setting = current(settings);
        int64_t passed = nanos(&wall) - setting.since;
        int64_t now = nanos(out) + setting.ahead + passed / 1000 * setting.too_fast;
        out->tv_sec = now / SECOND;
        out->tv_nsec = now % SECOND;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
