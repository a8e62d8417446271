/* Does nothing; has nothing to do with verbs unless it is built so that it looks like it. With an
   argument it waits for the end of its input. */
#include <stdio.h>

#ifdef NAMES_VERBS
const char *volatile name = "libibverbs.so.1";
#endif

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1 && puts("waits") > 0 && !fflush(stdout))
        getchar();
    return 0;
}
