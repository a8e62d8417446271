// Completion queues, their events, and asynchronous events.
#include "misuse.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

// The completion queue is smaller than the number of outstanding requests, but is polled in time.
// Seen in spdk/spdk#1747, ofiwg/libfabric#4250.
static void cq_too_small(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){.cqe = wrong ? 10 : 32});
    for (int i = 0; i < 9; i++)
        check(!post_send(&sides[0], i, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
    usleep(200000);
    for (int i = 0; i < 9; i++)
        done(&sides[0]);
    close_sides(sides);
}

static void cq_overrun(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){.cqe = wrong ? 4 : 32});
    for (int i = 0; i < 8; i++) {
        int error = post_send(&sides[0], i, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 64, &sides[1]);
        if (wrong && error)
            break;
        check(!error, "ibv_post_send");
        usleep(20000);
    }
    struct ibv_wc wc;
    for (int i = 0; i < (wrong ? 4 : 8); i++)
        completion(&sides[0], &wc);
    close_sides(sides);
}

static void arm(struct side *side) {
    check(!ibv_req_notify_cq(side->cq, 0), "ibv_req_notify_cq");
}

// Gets an event, and acknowledges `acknowledged` events.
static void take_event(struct side *side, unsigned acknowledged) {
    struct ibv_cq *cq;
    void *user;
    check(!ibv_get_cq_event(side->channel, &cq, &user), "ibv_get_cq_event");
    if (acknowledged)
        ibv_ack_cq_events(cq, acknowledged);
}

static void write_one(struct side sides[2]) {
    check(!post_send(&sides[0], 1, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 64, &sides[1]), "ibv_post_send");
}

// Gets an event, arms the queue, and waits again without polling it. Seen in apache/brpc#3415,
// ofiwg/libfabric#796, ThinkParQ/beegfs#133.
static void *sleeper(void *of) {
    struct side *sides = of;
    arm(&sides[0]);
    write_one(sides);
    take_event(&sides[0], 1);
    arm(&sides[0]);
    take_event(&sides[0], 1);
    return NULL;
}

static void sleep_with_completions(bool wrong) {
    static struct side sides[2];
    make_pair(sides, (struct options){0});
    if (wrong) {
        pthread_t thread;
        check(!pthread_create(&thread, NULL, sleeper, sides), "pthread_create");
        sleep(3);
        return;
    }
    arm(&sides[0]);
    write_one(sides);
    take_event(&sides[0], 1);
    arm(&sides[0]);
    done(&sides[0]);
    write_one(sides);
    take_event(&sides[0], 1);
    done(&sides[0]);
    close_sides(sides);
}

// Polls one of two completions, and waits for an event of a queue that is not armed.
static void sleep_in(bool wrong, void (*wait)(int fd, int ms)) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    arm(&sides[0]);
    write_one(sides);
    take_event(&sides[0], 1);
    write_one(sides);
    done(&sides[0]);
    if (wrong) {
        wait(sides[0].channel->fd, 3000);
    } else {
        arm(&sides[0]);
        done(&sides[0]);
        wait(sides[0].channel->fd, 1500);
    }
    close_sides(sides);
}

static void in_epoll(int fd, int ms) {
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    check(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
    check(epoll_wait(set, &event, 1, ms) >= 0, "epoll_wait");
    close(set);
}

static void in_poll(int fd, int ms) {
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    check(poll(&entry, 1, ms) >= 0, "poll");
}

static void sleep_in_epoll(bool wrong) { sleep_in(wrong, in_epoll); }
static void sleep_in_poll(bool wrong) { sleep_in(wrong, in_poll); }

// Polls the queue until it is empty, arms it, and waits: a completion between polling and arming
// raises no event.
static void sleep_armed_late(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    arm(&sides[0]);
    write_one(sides);
    take_event(&sides[0], 1);
    done(&sides[0]);
    write_one(sides);
    usleep(200000);
    arm(&sides[0]);
    if (!wrong)
        done(&sides[0]);
    take_event(&sides[0], 1);
    if (wrong)
        done(&sides[0]);
    close_sides(sides);
}

// Destroys a queue whose events were received but not acknowledged. Seen in openucx/ucx#1039,
// linux-rdma/perftest#60, spdk/spdk#3347.
static void *destroyer(void *of) {
    destroy_side(of);
    return NULL;
}

static void events_unacked(bool wrong) {
    static struct side sides[2];
    make_pair(sides, (struct options){0});
    arm(&sides[0]);
    write_one(sides);
    take_event(&sides[0], !wrong);
    done(&sides[0]);
    if (wrong) {
        pthread_t thread;
        check(!pthread_create(&thread, NULL, destroyer, &sides[0]), "pthread_create");
        sleep(4);
        return;
    }
    close_sides(sides);
}

static void acked_too_many(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    arm(&sides[0]);
    write_one(sides);
    take_event(&sides[0], wrong ? 2 : 1);
    done(&sides[0]);
    close_sides(sides);
}

// Two events arrive; with edge-triggered epoll, the program gets only one of them before it waits
// again. Seen in kvcache-ai/Mooncake#3236.
static void event_unread(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    int fd = sides[0].channel->fd, set = epoll_create1(0);
    check(!fcntl(fd, F_SETFL, O_NONBLOCK), "fcntl");
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    check(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
    for (int i = 0; i < 2; i++) {
        arm(&sides[0]);
        write_one(sides);
        done(&sides[0]);
    }
    int taken = 0;
    struct ibv_cq *cq;
    void *user;
    while (taken < 2 && epoll_wait(set, &event, 1, 1600) == 1) {
        while (!ibv_get_cq_event(sides[0].channel, &cq, &user)) {
            ibv_ack_cq_events(cq, 1);
            taken++;
            if (wrong)
                break;
        }
    }
    close(set);
    close_sides(sides);
}

// The same with events of the device context: each queue pair with a shared receive queue raises
// QP_LAST_WQE_REACHED when it is in ERR and has no receive of that queue any more.
static void event_unread_async(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    struct ibv_srq_init_attr of_srq = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(sides[0].pd, &of_srq);
    check(srq, "ibv_create_srq");
    int fd = context->async_fd, set = epoll_create1(0);
    check(!fcntl(fd, F_SETFL, O_NONBLOCK), "fcntl");
    struct epoll_event wanted = {.events = EPOLLIN | EPOLLET};
    check(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted), "epoll_ctl");
    struct ibv_qp *qps[2];
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr init = {
            .send_cq = sides[0].cq,
            .recv_cq = sides[0].cq,
            .srq = srq,
            .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = 1, .max_send_sge = 1},
        };
        qps[i] = ibv_create_qp(sides[0].pd, &init);
        check(qps[i], "ibv_create_qp");
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
        int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        check(!ibv_modify_qp(qps[i], &attr, mask), "to INIT");
        attr.qp_state = IBV_QPS_ERR;
        check(!ibv_modify_qp(qps[i], &attr, IBV_QP_STATE), "to ERR");
    }
    int taken = 0;
    struct ibv_async_event event;
    while (taken < 2 && epoll_wait(set, &wanted, 1, 1600) == 1) {
        while (!ibv_get_async_event(context, &event)) {
            check(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED, "the type of the event");
            ibv_ack_async_event(&event);
            taken++;
            if (wrong)
                break;
        }
    }
    close(set);
    for (int i = 0; i < 2; i++)
        check(!ibv_destroy_qp(qps[i]), "ibv_destroy_qp");
    check(!ibv_destroy_srq(srq), "ibv_destroy_srq");
    close_sides(sides);
}

// A peer uses an unknown key, which moves the queue pair to ERR without a completion. Seen in
// ROCm/mori#670.
static void async_unread(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    struct ibv_mr unknown = *sides[1].mr;
    unknown.rkey = 0x12345678;
    struct side target = {.memory = sides[1].memory, .mr = &unknown};
    check(!post_send(&sides[0], 1, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 64, &target), "ibv_post_send");
    check(completion(&sides[0], NULL) == IBV_WC_REM_ACCESS_ERR, "the status of the completion");
    struct ibv_async_event event;
    if (wrong) {
        usleep(1600000);
    } else {
        check(!ibv_get_async_event(context, &event) && event.event_type == IBV_EVENT_QP_ACCESS_ERR, "ibv_get_async_event");
        ibv_ack_async_event(&event);
    }
    close_sides(sides);
}

// Reconnects with a completion queue that still holds a completion of the old connection. Seen in
// spdk/spdk#3807.
static void completion_of_the_dead(bool wrong) {
    struct side sides[2];
    make_pair(sides, (struct options){0});
    arm(&sides[0]);
    write_one(sides);
    take_event(&sides[0], 1);
    if (!wrong)
        done(&sides[0]);
    for (int i = 0; i < 2; i++) {
        check(!ibv_destroy_qp(sides[i].qp), "ibv_destroy_qp");
        make_qp(&sides[i], (struct options){0});
    }
    for (int i = 0; i < 2; i++)
        connect_side(&sides[i], &sides[1 - i], (struct options){0}, NULL);
    write_one(sides);
    done(&sides[0]);
    close_sides(sides);
}

const struct misuse event_cases[] = {
    {"event-unread", event_unread},
    {"event-unread-async", event_unread_async},
    {"async-unread", async_unread},
    {"completion-of-the-dead", completion_of_the_dead},
    {"cq-too-small", cq_too_small},
    {"cq-overrun", cq_overrun},
    {"sleep-with-completions", sleep_with_completions},
    {"sleep-in-epoll", sleep_in_epoll},
    {"sleep-in-poll", sleep_in_poll},
    {"sleep-armed-late", sleep_armed_late},
    {"events-unacked", events_unacked},
    {"acked-too-many", acked_too_many},
    {NULL, NULL},
};
