/* Prints the names of the devices; loads libibverbs with dlopen, under the name in its argument or
   the usual name. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *library = dlopen(argc == 2 ? argv[1] : "libibverbs.so.1", RTLD_NOW);
    void **(*devices)(int *) = library ? (void **(*)(int *))dlsym(library, "ibv_get_device_list") : NULL;
    const char *(*name)(void *) = library ? (const char *(*)(void *))dlsym(library, "ibv_get_device_name") : NULL;
    if (!devices || !name) {
        printf("%s\n", dlerror());
        return 1;
    }
    void **list = devices(NULL);
    for (int i = 0; list && list[i]; i++)
        puts(name(list[i]));
    return list ? 0 : 1;
}
