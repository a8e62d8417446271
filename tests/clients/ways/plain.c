/* Does nothing, and does not use verbs. NAMES_VERBS and HAS_VERBS put strings of verbs programs
   into it. With an argument it waits until its input ends; if HOLDS is defined, it first loads the
   library that the argument names. */
#include <dlfcn.h>
#include <stdio.h>

#ifdef NAMES_VERBS
const char *volatile name = "libibverbs.so.1";
#endif

#ifdef HAS_VERBS
const char *volatile message = "libibverbs: Warning: fork()-safety requested but init failed";
#endif

int main(int argc, char **argv)
{
    (void)argv;
#ifdef HOLDS
    if (argc < 2 || !dlopen(argv[1], RTLD_NOW))
        return 1;
#endif
    if (argc > 1 && puts("waits") > 0 && !fflush(stdout))
        getchar();
    return 0;
}
