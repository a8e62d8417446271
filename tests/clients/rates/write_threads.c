/*
 * Threads that stream RDMA WRITEs to polling threads of another process, each with a queue pair and
 * a completion queue of its own: write_threads -p PORT -t THREADS -s BYTES -n MESSAGES [SERVER]
 *
 * MESSAGES counts those of all threads. The client prints a line as perftest does: bytes, messages,
 * 0, 0, million messages per second.
 */
#define _GNU_SOURCE
#include "endpoint.h"
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>

/* Number of outstanding WRITEs of a thread. */
#define DEPTH 64
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

struct worker {
	pthread_t thread;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct address own, peer;
};

static int port = 18515, threads = 1, bytes = 64;
static long messages = 10000;
static atomic_int is_over;
static struct ibv_context *context;
static struct ibv_pd *pd;

static void create_worker(struct worker *worker, int index)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	char *memory = calloc(1, bytes);

	worker->cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	check(!memory || !worker->cq, "ibv_create_cq");
	init.send_cq = init.recv_cq = worker->cq;
	init.cap = (struct ibv_qp_cap){ DEPTH, 1, 1, 1, 0 };
	worker->qp = ibv_create_qp(pd, &init);
	check(!worker->qp, "ibv_create_qp");
	worker->mr = ibv_reg_mr(pd, memory, bytes, ACCESS);
	check(!worker->mr, "ibv_reg_mr");
	to_init(worker->qp, IBV_ACCESS_REMOTE_WRITE);
	check(ibv_query_gid(context, 1, 0, &worker->own.gid), "ibv_query_gid");
	worker->own.qpn = worker->qp->qp_num;
	worker->own.psn = index;
	worker->own.memory = (uintptr_t)memory;
	worker->own.rkey = worker->mr->rkey;
}

/* Polls completions. Returns their number. */
static int poll(struct worker *worker)
{
	struct ibv_wc wc[DEPTH];
	int count = ibv_poll_cq(worker->cq, DEPTH, wc);

	check(count < 0, "ibv_poll_cq");
	for (int at = 0; at < count; at++)
		check(wc[at].status, ibv_wc_status_str(wc[at].status));
	return count;
}

static void *serve(void *of)
{
	while (!atomic_load(&is_over))
		poll(of);
	return NULL;
}

static void *stream(void *of)
{
	struct worker *worker = of;
	struct ibv_sge sge = { worker->own.memory, bytes, worker->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	long posted = 0, done = 0, all = messages / threads;

	wr.wr.rdma.remote_addr = worker->peer.memory;
	wr.wr.rdma.rkey = worker->peer.rkey;
	while (done < all) {
		for (; posted < all && posted - done < DEPTH; posted++)
			check(ibv_post_send(worker->qp, &wr, &bad), "ibv_post_send");
		done += poll(worker);
	}
	return NULL;
}

static void start(struct worker *worker, void *(*body)(void *))
{
	errno = pthread_create(&worker->thread, NULL, body, worker);
	check(errno, "pthread_create");
}

int main(int argc, char **argv)
{
	struct worker *workers;
	const char *server;
	double begun;
	int option, sock;

	while ((option = getopt(argc, argv, "p:t:s:n:")) != -1) {
		switch (option) {
		case 'p': port = atoi(optarg); break;
		case 't': threads = atoi(optarg); break;
		case 's': bytes = atoi(optarg); break;
		case 'n': messages = atol(optarg); break;
		default: return 2;
		}
	}
	server = argv[optind];
	context = open_first();
	pd = ibv_alloc_pd(context);
	workers = calloc(threads, sizeof(*workers));
	check(!pd || !workers, "set-up");
	for (int index = 0; index < threads; index++)
		create_worker(&workers[index], index);
	sock = connect_peer(server, port);
	for (int index = 0; index < threads; index++) {
		struct worker *worker = &workers[index];

		exchange(sock, &worker->own, &worker->peer, sizeof(worker->own));
		to_rts(worker->qp, IBV_MTU_4096, &worker->own, &worker->peer);
	}
	if (!server)
		for (int index = 0; index < threads; index++)
			start(&workers[index], serve);
	wait_for_peer(sock);
	begun = seconds();
	if (server)
		for (int index = 0; index < threads; index++)
			start(&workers[index], stream);
	else
		wait_for_peer(sock);
	atomic_store(&is_over, 1);
	for (int index = 0; index < threads; index++)
		pthread_join(workers[index].thread, NULL);
	if (server) {
		print_rate(bytes, messages / threads * threads, begun);
		wait_for_peer(sock);
	}
	return 0;
}
