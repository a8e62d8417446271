/* Does nothing; has nothing to do with verbs unless it is built so that it looks like it. With an
   argument it waits for the end of its input. If HOLDS is defined it opens the library of its first argument before
   that. */
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
