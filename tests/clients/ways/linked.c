/* Prints the names of the devices; linked with libibverbs. */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    for (int i = 0; list && list[i]; i++)
        puts(ibv_get_device_name(list[i]));
    return list ? 0 : 1;
}
