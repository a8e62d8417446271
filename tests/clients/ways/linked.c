/* Prints the names of the devices; linked with libibverbs. With an argument it then waits until its
   input ends. If IDLE is defined, it does not list devices and ends at once. */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    (void)argv;
#ifdef IDLE
    if (argc)
        return ibv_fork_init();
#endif
    struct ibv_device **list = ibv_get_device_list(NULL);
    for (int i = 0; list && list[i]; i++)
        puts(ibv_get_device_name(list[i]));
    if (argc > 1 && puts("waits") > 0 && !fflush(stdout))
        getchar();
    return list ? 0 : 1;
}
