/* Ends main by pthread_exit while another thread runs that never calls verbs: the process must end
   with status 0 when that thread returns. The device is opened by main, or, with the argument
   "later", by a third thread, which ends before main. */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void *open_device(void *unused)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    struct ibv_context *context = list && count ? ibv_open_device(list[0]) : NULL;
    struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
    struct ibv_cq *cq = context ? ibv_create_cq(context, 8, NULL, NULL, 0) : NULL;
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    if (!pd || !cq || !ibv_create_qp(pd, &init)) {
        perror("verbs");
        _exit(1);
    }
    return unused;
}

static void *work(void *unused)
{
    usleep(100000);
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t worker, opener;
    if (argc > 1 && !strcmp(argv[1], "later")) {
        pthread_create(&opener, NULL, open_device, NULL);
        pthread_join(opener, NULL);
    } else {
        open_device(NULL);
    }
    pthread_create(&worker, NULL, work, NULL);
    pthread_detach(worker);
    pthread_exit(NULL);
}
