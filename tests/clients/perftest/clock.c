/*
 * gettimeofday for perftest, by LD_PRELOAD: 200 times and again for each message size it compares
 * this clock with the processor's cycles, a quarter of a second of processor time, to know how many
 * cycles are a microsecond. Here 64 are, so it is quicker by that, and as both clocks are one, the
 * comparison cannot fail beside busy processes. The times that perftest prints are wrong by the same
 * factor: only for tests that do not read them.
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
