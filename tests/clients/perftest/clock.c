/*
 * Replaces gettimeofday for perftest, by LD_PRELOAD. To determine the number of cycles in a
 * microsecond, perftest compares this clock with the processor's cycle counter 200 times, and again
 * for each message size, which takes a quarter of a second of processor time. Here a microsecond
 * has 64 cycles, so that takes less time, and rarely fails while other processes are busy. All
 * times that perftest prints are wrong by the same factor, so this is only for tests that ignore
 * them.
 */
#include <sys/time.h>
#include <x86intrin.h>

int gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	unsigned long long us = __rdtsc() / 64;

	(void)tz;
	tv->tv_sec = us / 1000000;
	tv->tv_usec = us % 1000000;
	return 0;
}
